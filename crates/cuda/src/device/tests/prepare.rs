//! Inputs of products, as tiles of tokens.

use super::*;

/// The kernels that know what a row goes through, and the one that knows nothing: the same products.
#[test]
fn inputs_of_known_forms_have_the_bits_of_any() {
    let Some(mut device) = device() else { return };
    if crate::matrix::has_wgmma(&device.gpu.info) {
        known_forms(&mut device, Numerics::F16, Form::Tiles);
    }
    known_forms(&mut device, Numerics::Int8, Form::ByteTiles);
}

fn known_forms(device: &mut CudaDevice, numerics: Numerics, form: Form) {
    let sizes = [(150, 256), (40, 3584), (70, 3584), (129, 18944), (9, 18944)];
    // Fewer as bytes are no tiles.
    for (tokens, cols) in sizes.into_iter().filter(|(tokens, _)| form == Form::Tiles || *tokens >= 64) {
        device.reserve(&reserve(tokens, cols, SMALL_HEADS, 1)).expect("memory");
        let linear = tuned_linear(device, GgmlType::Q4_K, 64, cols, numerics);
        let mut numbers = Numbers(cols as u64);
        let mut upload = |len: usize| {
            let values = numbers.heavy(len, 1.0);
            let buffer = device.gpu.alloc::<f32>(len, "test").expect("memory");
            device.gpu.upload(&values, &buffer).expect("a copy");
            (values, buffer)
        };
        let (values, x) = upload(tokens * cols);
        let (_, weight) = upload(cols);
        let norm = LoadedNorm { kind: NormKind::Rms { eps: 1e-5 }, weight, bias: None };
        let largest = |row: &[f32]| row.iter().fold(0.0f32, |m, v| m.max(v.abs())).to_bits();
        let largest: Vec<u32> = values.chunks(cols).map(largest).collect();
        let known = device.gpu.alloc::<u32>(tokens, "test").expect("memory");
        device.gpu.upload(&largest, &known).expect("a copy");
        for (case, norm, most) in
            [("norm", Some(&norm), 0), ("plain", None, 0), ("known", None, at(&known, 0))]
        {
            let source = Source { norm, most, ..Source::rows(&x, cols) };
            let mut results = Vec::new();
            let own = *kernels_of(device, form);
            assert!(own[0] != own[if norm.is_some() { 1 } else { 2 }]);
            for kernels in [own, [own[0]; 3]] {
                *kernels_of(device, form) = kernels;
                let state = device.state().expect("memory");
                let input = device.input_for(state.normed.input(tokens, cols), &[&linear.matrix]);
                assert_eq!(input.form, form);
                device.prepare(&source, input).expect("a launch");
                let out = device.gpu.alloc::<f32>(tokens * 64, "test").expect("memory");
                device.store(&linear, input, &out).expect("a launch");
                results.push(bits(device, &out));
            }
            *kernels_of(device, form) = own;
            assert!(results[0] == results[1], "{form:?}, {case}: {tokens} tokens of {cols} columns");
        }
    }
}

fn kernels_of(device: &mut CudaDevice, form: Form) -> &mut [Kernel; 3] {
    match form {
        Form::Tiles => &mut device.common.prepare_tiles,
        _ => &mut device.common.prepare_byte_tiles,
    }
}
