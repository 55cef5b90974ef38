"""The jobs, one line each: name → factory, so that a job that is not asked for costs nothing."""

from collections.abc import Callable

from benchmarks.harness import Job
from benchmarks.jobs import analytic, kernel, processes, pruning, selecting, training

JOBS: dict[str, Callable[[], Job]] = {
    "ntk-sap-resnet20": pruning.ntk_sap_resnet20,
    "ntk-sap-vgg16": pruning.ntk_sap_vgg16,
    "synflow-resnet20": pruning.synflow_resnet20,
    "iterative-snip-resnet20": pruning.iterative_snip_resnet20,
    "grasp-resnet20": pruning.grasp_resnet20,
    "ntk-sap-analytic-resnet20": analytic.ntk_sap_analytic_resnet20,
    "ntk-sap-analytic-vgg16": analytic.ntk_sap_analytic_vgg16,
    "resnet50-memory": pruning.resnet50_memory,
    "train-resnet20": training.train_resnet20,
    "infer-resnet20": training.infer_resnet20,
    "ntk-resnet20": kernel.ntk_resnet20,
    "ntk-resnet20-sparse": kernel.ntk_resnet20_sparse,
    "selection": selecting.selection,
    "prune-processes": processes.prune_processes,
    "train-processes": processes.train_processes,
    "train-processes-sync": processes.train_processes_sync,
}
