"""From ``[pipeline] task`` to a pipeline. The pipelines' modules are imported only when a model asks for them."""

from appliance.errors import ModelLoadError
from appliance.pipelines.base import Pipeline, PipelineContext

TASKS: tuple[str, ...] = ("classify", "detect", "embed", "generate", "ocr", "rerank", "segment", "tensors")
"""Every task that ``model.toml`` can name."""


def build(context: PipelineContext) -> Pipeline:
    """The pipeline of a model; without a task the one that it surely is for, else ``tensors``. May read files.

    Raises ModelLoadError, naming the key, for an unknown task or key, or where options and model do not fit.
    """
    match context.options.get("task") or _usual_task(context):
        case "classify":
            from appliance.pipelines.classify import Classify

            return Classify(context)
        case "detect":
            from appliance.pipelines.detect import Detect

            return Detect(context)
        case "embed":
            from appliance.pipelines.embed import Embed

            return Embed(context)
        case "generate":
            from appliance.pipelines.language.generate import Generate

            return Generate(context)
        case "ocr":
            from appliance.pipelines.ocr import Ocr

            return Ocr(context)
        case "rerank":
            from appliance.pipelines.rerank import Rerank

            return Rerank(context)
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


def _usual_task(context: PipelineContext) -> str:
    spec = context.spec
    if spec is not None and spec.generation is not None:
        return "generate"
    if spec is not None and spec.input("input_ids") is not None:
        from appliance.pipelines.embed import looks_like

        if looks_like(context):
            return "embed"
    return "tensors"
