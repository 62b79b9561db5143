"""What a file is that was taken for ONNX and is not: told from its first bytes."""

_BEGINNINGS: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "it is only a Git LFS pointer; fetch the file itself (git lfs pull)"),
    (b"PK\x03\x04", "it is a zip archive (a PyTorch file, or a model that was packed), not an ONNX model"),
    (b"\x80\x02", "it is a Python pickle (a PyTorch file), which is never loaded; export the model to ONNX"),
    (b"\x80\x03", "it is a Python pickle (a PyTorch file), which is never loaded; export the model to ONNX"),
    (b"\x80\x04", "it is a Python pickle (a PyTorch file), which is never loaded; export the model to ONNX"),
    (b"\x80\x05", "it is a Python pickle (a PyTorch file), which is never loaded; export the model to ONNX"),
    (b"\x1f\x8b", "it is packed with gzip; unpack it first"),
    (b"7z\xbc\xaf", "it is packed with 7-Zip; unpack it first"),
    (b"Rar!", "it is packed with RAR; unpack it first"),
    (b"\x89HDF", "it is an HDF5 file (Keras), not an ONNX model"),
    (b"GGUF", "it is a GGUF file, not an ONNX model"),
    (b"ftrt", "it is a TensorRT engine, not an ONNX model"),
)


def guess(head: bytes, size: int) -> str | None:
    """A sentence without a subject's name, or None. ``head``: the first bytes; ``size``: of the file.

    Only for files that are not ONNX: an ONNX file may begin like some of these by chance.
    """
    for beginning, words in _BEGINNINGS:
        if head.startswith(beginning):
            return words
    if head[4:8] == b"TFL3":
        return "it is a TensorFlow Lite model, not an ONNX model"
    if head[4:8] == b"ORTM":
        return "it is in ONNX Runtime's own format (.ort), not an ONNX model"
    if size > 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < size:
        return "it is a safetensors file: weights without a graph, not an ONNX model"
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page, not an ONNX model; the download went wrong"
    if not head.strip(b"\x00"):
        return "it holds nothing but zeros; the download or copy was not finished"
    if _is_text(head):
        return "it is text, not an ONNX model"
    return None


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:  # else a character that the cut went through
            return False
        text = head[: error.start].decode()
    return all(c.isprintable() or c in "\t\r\n\f" for c in text)
