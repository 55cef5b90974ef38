"""What ``ntksap train`` prints."""

from ntksap.cli import main


def test_one_epoch_is_not_called_epochs(tmp_path, capsys):
    arguments = ["--data", "digits", "--model", "lenet-300-100", "--method", "random", "--sparsity", "0.9"]
    assert main(["train", *arguments, "--epochs", "1", "--out", str(tmp_path), "--quiet"]) == 0
    assert "after 1 epoch (training accuracy" in " ".join(capsys.readouterr().out.split())
