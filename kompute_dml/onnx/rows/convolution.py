"""Rows of convolution, pooling, regions of interest and resizing."""

from __future__ import annotations

from .. import convolution, pooling, resize, sampling
from ..row import MICROSOFT, Mapping

_WINDOW = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")
_CONVOLUTION = (1, 11, 22)
_CONVOLVED = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")

ROWS: tuple[Mapping, ...] = (
    # Pooling, regions of interest, resizing
    Mapping("AveragePool", (1, 7, 10, 11, 19, 22), "AVERAGE_POOLING",
        pooling.pooling("AVERAGE_POOLING", "AVERAGE_POOLING1"),
        attributes=(*_WINDOW, "count_include_pad")),
    Mapping("LpPool", (1, 2, 11, 18, 22), "LP_POOLING",
        pooling.pooling("LP_POOLING", "LP_POOLING1"), attributes=(*_WINDOW, "p")),
    Mapping("MaxPool", (1, 8, 10, 11, 12, 22), "MAX_POOLING",
        pooling.pooling("MAX_POOLING", "MAX_POOLING2"),
        attributes=(*_WINDOW, "storage_order")),
    *(Mapping(f"Global{op}Pool", since, operator, pooling.global_pooling(operator),
          attributes=("p",) if op == "Lp" else ())
      for op, since, operator in (
          ("Average", (1, 22), "AVERAGE_POOLING"), ("Max", (1, 22), "MAX_POOLING"),
          ("Lp", (1, 2, 22), "LP_POOLING"))),
    Mapping("QLinearAveragePool", (1,), "QUANTIZED_LINEAR_AVERAGE_POOLING",
        pooling.quantized_average(False), MICROSOFT,
        attributes=(*_WINDOW, "count_include_pad", "channels_last")),
    Mapping("QLinearGlobalAveragePool", (1,), "QUANTIZED_LINEAR_AVERAGE_POOLING",
        pooling.quantized_average(True), MICROSOFT, attributes=("channels_last",)),
    Mapping("MaxUnpool", (9, 11, 22), "MAX_UNPOOLING", pooling.max_unpooling,
        fields=("InputTensor", None), attributes=("kernel_shape", "pads", "strides"),
        refuses=lambda node: "output_shape" if node.input(2) else None),
    Mapping("MaxRoiPool", (1, 22), "ROI_POOLING", pooling.roi_pooling,
        attributes=("pooled_shape", "spatial_scale")),
    Mapping("RoiAlign", (10, 16, 22), "ROI_ALIGN1", pooling.roi_align,
        fields=("InputTensor", "ROITensor", None),
        attributes=("coordinate_transformation_mode", "mode", "output_height", "output_width",
                    "sampling_ratio", "spatial_scale"), refuses=pooling.roi_align_refused),
    Mapping("Upsample", (1, 7, 9, 10), "RESAMPLE2", resize.resize,
        fields=("InputTensor", None),
        attributes=("height_scale", "mode", "scales", "width_scale"), host=(1,),
        refuses=resize.refusal),
    Mapping("Resize", (10,), "RESAMPLE2", resize.resize, fields=("InputTensor", None),
        attributes=("mode",), host=(1,), refuses=resize.refusal),
    Mapping("Resize", (11, 13, 18, 19), "RESAMPLE2", resize.resize,
        fields=("InputTensor", None),
        attributes=("antialias", "axes", "coordinate_transformation_mode", "cubic_coeff_a",
                    "exclude_outside", "extrapolation_value", "keep_aspect_ratio_policy", "mode",
                    "nearest_mode"),
        host=(1, 2, 3), refuses=resize.refusal),
    *[Mapping("GridSample", since, "GATHER_ELEMENTS", sampling.grid_sample, domain,
          fields=("InputTensor", None),
          attributes=("align_corners", "mode", "padding_mode"), refuses=sampling.refusal)
      for since, domain in (((16, 20, 22), ""), ((1,), MICROSOFT))],
    # Convolutions
    Mapping("Conv", _CONVOLUTION, "CONVOLUTION", convolution.convolution,
        attributes=_CONVOLVED, multiplies=True, any_size=True),
    Mapping("FusedConv", (1,), "CONVOLUTION", convolution.convolution, MICROSOFT,
        attributes=(*_CONVOLVED, "activation", "activation_params"),
        refuses=convolution.refuses_activation, multiplies=True, any_size=True),
    Mapping("NhwcConv", (1,), "CONVOLUTION", convolution.channels_last, MICROSOFT,
        attributes=_CONVOLVED, multiplies=True),
    *[Mapping("CausalConvWithState", since, "CONVOLUTION", convolution.causal, domain,
          fields=("InputTensor", "FilterTensor", "BiasTensor", "InputTensor"),
          results=("OutputTensor",) * 2, attributes=("activation", *attributes),
          refuses=convolution.causal_refusal, multiplies=True)
      for since, domain, attributes in (
          ((27,), "", ()), ((1,), MICROSOFT, tuple(convolution.CAUSAL_USUAL)))],
    Mapping("ConvTransposeWithDynamicPads", (1,), "CONVOLUTION",
        convolution.transposed_by_pads, MICROSOFT,
        fields=("InputTensor", "FilterTensor", None, "BiasTensor"), host=(2,),
        attributes=(*(a for a in _CONVOLVED if a != "pads"), "output_padding"), multiplies=True),
    Mapping("ConvTranspose", _CONVOLUTION, "CONVOLUTION", convolution.transposed,
        attributes=(*_CONVOLVED, "output_padding", "output_shape"), multiplies=True),
    Mapping("ConvInteger", (10,), "CONVOLUTION_INTEGER", convolution.integer,
        fields=("InputTensor", "FilterTensor", "InputZeroPointTensor", "FilterZeroPointTensor"),
        attributes=_CONVOLVED, multiplies=True),
    Mapping("QLinearConv", (10,), "QUANTIZED_LINEAR_CONVOLUTION", convolution.quantized,
        fields=convolution.QUANTIZED_FIELDS, attributes=_CONVOLVED, multiplies=True),
    Mapping("Col2Im", (18,), "FOLD", convolution.columns_to_image,
        fields=("InputTensor", None, None), attributes=("dilations", "pads", "strides"),
        host=(1, 2)),
)
