#!/usr/bin/env python3
"""Copy a GGUF with every quantised tensor turned into BF16 (or F16/F32), so that llama.cpp can be
measured on the same weights and bytes as an engine that reads the converted model folder.

    gguf_to_bf16.py IN.gguf OUT.gguf [--type BF16|F16|F32]

Row order stays GGUF's own (q and k stay permuted). Needs gguf, numpy.
"""

import argparse

import gguf
import numpy as np


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("src")
    ap.add_argument("dst")
    ap.add_argument("--type", default="BF16", choices=["BF16", "F16", "F32"])
    a = ap.parse_args()
    r = gguf.GGUFReader(a.src)
    w = gguf.GGUFWriter(a.dst, r.fields["general.architecture"].contents())
    ftype = {
        "F32": gguf.LlamaFileType.ALL_F32,
        "F16": gguf.LlamaFileType.MOSTLY_F16,
        "BF16": gguf.LlamaFileType.MOSTLY_BF16,
    }[a.type]
    for name, f in r.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        if name == "general.file_type":
            w.add_file_type(ftype)
            continue
        sub = f.types[1] if f.types[0] == gguf.GGUFValueType.ARRAY else None
        w.add_key_value(name, f.contents(), f.types[0], sub_type=sub)
    want = gguf.GGMLQuantizationType[a.type]
    for t in r.tensors:
        x = gguf.dequantize(t.data, t.tensor_type).astype(np.float32)
        if x.ndim == 1 or want == gguf.GGMLQuantizationType.F32:
            w.add_tensor(t.name, x)
        else:
            w.add_tensor(t.name, gguf.quantize(x, want), raw_dtype=want)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
