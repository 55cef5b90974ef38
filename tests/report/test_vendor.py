import hashlib
from importlib import resources

VERSION = "4.1.1"
SHA256 = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"


def test_the_charting_library_is_the_published_file():
    folder = resources.files("ntksap.report").joinpath("vendor")
    library = folder.joinpath("plotly-cartesian.min.js").read_bytes()
    assert hashlib.sha256(library).hexdigest() == SHA256
    assert f"plotly.js (cartesian - minified) v{VERSION}".encode() in library[:200]
    assert f"plotly.js {VERSION}" in folder.joinpath("README.md").read_text()
    assert folder.joinpath("LICENSE").read_text().startswith("MIT License")
    assert b"</script" not in library.lower()  # it stands inside a page
    assert b"<!--" not in library
