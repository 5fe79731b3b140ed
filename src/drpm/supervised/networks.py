"""The network that looks at every element of a batch by itself."""

from collections.abc import Sequence

from torch import Tensor, nn

from drpm.nn.dense import dense_layers


class ClassNetwork(nn.Module):
    """From rows (..., d) to what each of them is likely to be, as logits (..., K).

    Arguments:
        columns: The length d of a row.
        hidden: Widths of the layers between.
        classes: K.
    """

    def __init__(self, columns: int, hidden: Sequence[int], classes: int) -> None:
        super().__init__()
        widths = [columns, *hidden]
        self.layers = nn.Sequential(*dense_layers(widths), nn.Linear(widths[-1], classes))

    def forward(self, rows: Tensor) -> Tensor:
        logits: Tensor = self.layers(rows)
        return logits
