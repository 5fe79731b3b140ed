"""MNIST: handwritten digits."""

from drpm.data import mnist_like
from drpm.data.mnist_like import Arrays, Files, remote_file
from drpm.data.types import Dataset, DatasetSpec, Device

CLASSES = tuple("0123456789")

# The author's own site no longer serves the files.
_URLS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)

FILES = Files(
    train_images=remote_file(
        "mnist/train-images-idx3-ubyte.gz",
        _URLS,
        sha256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        content_sha256="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        size=9_912_422,
    ),
    train_labels=remote_file(
        "mnist/train-labels-idx1-ubyte.gz",
        _URLS,
        sha256="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        content_sha256="65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        size=28_881,
    ),
    test_images=remote_file(
        "mnist/t10k-images-idx3-ubyte.gz",
        _URLS,
        sha256="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        content_sha256="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        size=1_648_877,
    ),
    test_labels=remote_file(
        "mnist/t10k-labels-idx1-ubyte.gz",
        _URLS,
        sha256="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        content_sha256="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        size=4_542,
    ),
)


def read_arrays() -> Arrays:
    """The images and labels as bytes, for sets that are made of them."""
    return FILES.read()


def load(*, device: Device = "cpu", seed: int = 0) -> Dataset:
    """60,000 training and 10,000 test images, (1, 28, 28) in [0, 1]; the target `label`."""
    return mnist_like.load("mnist", FILES, CLASSES, device)


SPEC = DatasetSpec(
    name="mnist",
    title="Handwritten digits",
    source="LeCun, Cortes, Burges",
    licence="CC BY-SA 3.0",
    shapes="60,000 + 10,000 images of 1x28x28, 10 classes",
    load=load,
    files=FILES.all(),
)
