"""From ``[pipeline] task`` to a pipeline. The pipelines' modules are imported only when a model asks for them."""

from appliance.errors import ModelLoadError
from appliance.pipelines.base import Pipeline, PipelineContext

TASKS: tuple[str, ...] = ("classify", "detect", "ocr", "segment", "tensors")
"""Every task that ``model.toml`` can name."""


def build(context: PipelineContext) -> Pipeline:
    """The pipeline of a model, ``tensors`` without a task.

    Raises ModelLoadError, naming the key, for an unknown task or key, or where options and model do not fit.
    """
    match context.options.get("task", "tensors"):
        case "classify":
            from appliance.pipelines.classify import Classify

            return Classify(context)
        case "detect":
            from appliance.pipelines.detect import Detect

            return Detect(context)
        case "ocr":
            from appliance.pipelines.ocr import Ocr

            return Ocr(context)
        case "segment":
            from appliance.pipelines.segment import Segment

            return Segment(context)
        case "tensors":
            from appliance.pipelines.tensors import Tensors

            return Tensors(context)
        case unknown:
            raise ModelLoadError(
                f"model.toml of '{context.name}', [pipeline] task: no task {unknown!r}; known: {', '.join(TASKS)}"
            )
