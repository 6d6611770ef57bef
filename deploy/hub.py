"""Where a model's files are: a folder on this machine, or a name on the Hugging Face hub, fetched once into its cache."""

from pathlib import Path

from protos.errors import DataError

FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
"""What a checkpoint needs here. Pickled weights (*.bin, *.pt) are never fetched."""


def checkpoint_folder(name: str) -> Path:
    """The local folder of the checkpoint `name`. Raises DataError where it is neither a folder nor a reachable model.

    A name holds one slash, as in "Qwen/Qwen2.5-1.5B-Instruct"; what exists on this machine comes first. `HF_HOME`,
    `HF_TOKEN`, `HF_ENDPOINT` and `HF_HUB_OFFLINE` mean what they mean everywhere. Not verified against the hub itself: the
    tests serve its answers themselves.
    """
    folder = Path(name).expanduser()
    if folder.exists():
        return folder
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise DataError(f"no checkpoint folder {name}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"no checkpoint folder {name}, and the hub does not give a model of that name: {reason}"
        ) from error
