"""InputBuffers: the inputs of layers beside the hidden state, as operations of a native decoder.

ids ─ embed ─→ [inputs] ←─ norms ─ [projected] ← linear ← x
x → linear → [gate] → activation, times the layer's columns of [inputs] → linear → norm → x
"""

from dataclasses import dataclass

from chairlift.model.kernels.cpu import library
from chairlift.model.layers.per_layer_inputs import PerLayerInputs


@dataclass(frozen=True, slots=True)
class InputBuffers:
    """Numbers of float32 buffers.

    Attributes:
        inputs: of all layers, [layers * P].
        projected: the projection of embeddings, of the same width.
        gate: of one layer, [P].
        size: P.
        num_layers: layers.
    """

    inputs: int
    projected: int
    gate: int
    size: int
    num_layers: int

    @classmethod
    def add(cls, handle: int, inputs: PerLayerInputs, num_layers: int) -> "InputBuffers":
        """Add the buffers to a decoder of so many layers."""

        def buffer(width: int) -> int:
            index: int = library.load().add_buffer(handle, library.F32, width, library.BFLOAT16)
            return index

        width = num_layers * inputs.size
        return cls(buffer(width), buffer(width), buffer(inputs.size), inputs.size, num_layers)

    def add_norms(self, handle: int, inputs: PerLayerInputs, weight: int) -> None:
        """Add the norm of each layer's part of [projected] to [inputs]; `weight` is the address of float32 [P].

        The factor on the projection, which the norm cancels, is a factor on eps.
        """
        eps = inputs.norm.eps / inputs.projection_scale**2
        library.load().add_sum_norm(handle, self.projected, weight, eps, self.num_layers, self.size, 1.0, self.inputs)

    def add_product(self, handle: int, layer: int, activation: str, target: int) -> None:
        """Add the activation of [gate] times a layer's columns of [inputs]."""
        library.load().add_activation(
            handle, self.gate, self.inputs, layer * self.size, self.size, library.ACTIVATIONS[activation], target
        )
