"""Fashion-MNIST: articles of clothing, in the format of MNIST."""

from drpm.data import mnist_like
from drpm.data.mnist_like import Files, remote_file
from drpm.data.types import Dataset, DatasetSpec, Device

CLASSES = (
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)

_URLS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
)

FILES = Files(
    train_images=remote_file(
        "fashion-mnist/train-images-idx3-ubyte.gz",
        _URLS,
        sha256="3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        content_sha256="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        size=26_421_880,
    ),
    train_labels=remote_file(
        "fashion-mnist/train-labels-idx1-ubyte.gz",
        _URLS,
        sha256="a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        content_sha256="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        size=29_515,
    ),
    test_images=remote_file(
        "fashion-mnist/t10k-images-idx3-ubyte.gz",
        _URLS,
        sha256="346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        content_sha256="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        size=4_422_102,
    ),
    test_labels=remote_file(
        "fashion-mnist/t10k-labels-idx1-ubyte.gz",
        _URLS,
        sha256="67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        content_sha256="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        size=5_148,
    ),
)


def load(*, device: Device = "cpu", seed: int = 0) -> Dataset:
    """60,000 training and 10,000 test images, (1, 28, 28) in [0, 1]; the target `label`."""
    return mnist_like.load("fashion-mnist", FILES, CLASSES, device)


SPEC = DatasetSpec(
    name="fashion-mnist",
    title="Articles of clothing",
    source="Xiao, Rasul, Vollgraf (Zalando Research)",
    licence="MIT",
    shapes="60,000 + 10,000 images of 1x28x28, 10 classes",
    load=load,
    files=FILES.all(),
)
