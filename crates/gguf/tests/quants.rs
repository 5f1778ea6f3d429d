//! Block types against independent values: golden blocks of the Python package `gguf` (`tests/golden/quants/make.py`),
//! hand-computed blocks of the types it lacks, and the round trip of the reference quantizers.

use std::path::Path;

use minfer_gguf::quant::{self, Block, Quantize, fp4, k, simple, ternary};
use minfer_gguf::{GgmlType, QuantError, dequantize, quantize};

/// Types that the package's `gguf.quants` cannot dequantize; tested by hand below.
const NOT_IN_PACKAGE: [GgmlType; 10] = [
    GgmlType::F32,
    GgmlType::Q8_1,
    GgmlType::Q8_K,
    GgmlType::I8,
    GgmlType::I16,
    GgmlType::I32,
    GgmlType::I64,
    GgmlType::F64,
    GgmlType::Q1_0,
    GgmlType::Q2_0,
];

fn values_of(ty: GgmlType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; bytes.len() / ty.block_bytes() * ty.block_len()];
    dequantize(ty, bytes, &mut out).unwrap();
    out
}

#[test]
fn agrees_with_the_python_package_bit_for_bit() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/quants");
    for &ty in GgmlType::ALL.iter().filter(|ty| !NOT_IN_PACKAGE.contains(ty)) {
        let golden = std::fs::read(folder.join(format!("{ty}.bin"))).unwrap();
        let blocks = golden.len() / (ty.block_bytes() + 4 * ty.block_len());
        assert!(blocks >= 10, "{ty}: {blocks} blocks");
        let (bytes, expected) = golden.split_at(blocks * ty.block_bytes());
        let found = values_of(ty, bytes);
        let expected = expected.as_chunks::<4>().0;
        assert_eq!(found.len(), expected.len());
        for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
            let expected = f32::from_le_bytes(expected);
            // A NaN computed as ∞ · 0 or ∞ − ∞ has a sign that differs between machines.
            let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            assert!(same, "{ty}: value {i}: expected {expected:e}, found {found:e}");
        }
    }
}

#[test]
fn plain_types() {
    let f32s = [1.5f32, -0.0, f32::MIN_POSITIVE / 2.0, f32::INFINITY];
    let bytes: Vec<u8> = f32s.iter().flat_map(|x| x.to_le_bytes()).collect();
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(values_of(GgmlType::F32, &bytes)), f32s.map(f32::to_bits));
    assert_eq!(values_of(GgmlType::F64, &0.1f64.to_le_bytes()), [0.1]);
    assert_eq!(values_of(GgmlType::I8, &[0x80, 0x7f]), [-128.0, 127.0]);
    assert_eq!(values_of(GgmlType::I16, &[0, 0x80, 0xff, 0x7f]), [-32768.0, 32767.0]);
    assert_eq!(values_of(GgmlType::I32, &(-16_777_217i32).to_le_bytes()), [-16_777_216.0]);
    assert_eq!(values_of(GgmlType::I64, &i64::MIN.to_le_bytes()), [-9.223372e18]);
}

#[test]
fn types_the_package_lacks() {
    let half = [0x00, 0x38]; // f16 of 0.5

    let mut block = simple::BlockQ8_1 { d: half, s: [0; 2], qs: [0; 32] };
    (block.qs[0], block.qs[31]) = (-128, 3);
    let found = values_of(GgmlType::Q8_1, bytemuck::bytes_of(&block));
    assert_eq!((found[0], found[1], found[31]), (-64.0, 0.0, 1.5));

    let mut block = k::BlockQ8K { d: 0.25f32.to_le_bytes(), qs: [0; 256], bsums: [[0; 2]; 16] };
    (block.qs[0], block.qs[255]) = (-128, 127);
    let found = values_of(GgmlType::Q8_K, bytemuck::bytes_of(&block));
    assert_eq!((found[0], found[1], found[255]), (-32.0, 0.0, 31.75));

    // Bit i % 8 of byte i / 8: values 0, 2 and 127 are plus.
    let mut block = ternary::BlockQ1_0 { d: half, qs: [0; 16] };
    (block.qs[0], block.qs[15]) = (0b101, 0x80);
    let found = values_of(GgmlType::Q1_0, bytemuck::bytes_of(&block));
    assert_eq!(found[..4], [0.5, -0.5, 0.5, -0.5]);
    assert_eq!(found[126..], [-0.5, 0.5]);
    assert_eq!(found.iter().sum::<f32>(), 0.5 * 3.0 - 0.5 * 125.0);

    // Bits 2(i % 4) of byte i / 4: −1, 0, 1, 2 in order.
    let mut block = ternary::BlockQ2_0 { d: half, qs: [0x55; 16] };
    (block.qs[0], block.qs[15]) = (0b11_10_01_00, 0b00_01_10_11);
    let found = values_of(GgmlType::Q2_0, bytemuck::bytes_of(&block));
    assert_eq!(found[..5], [-0.5, 0.0, 0.5, 1.0, 0.0]);
    assert_eq!(found[59..], [0.0, 1.0, 0.5, 0.0, -0.5]);
}

#[test]
fn eight_bit_scales() {
    // OCP MX 1.0: E8M0 is 2^(e − 127). Half of that here.
    assert_eq!(
        [0, 1, 2, 127, 128, 254].map(fp4::e8m0_half).map(f64::from).map(f64::log2),
        [-128.0, -127.0, -126.0, -1.0, 0.0, 126.0]
    );
    // OCP FP8 E4M3: 0x38 is 1, 0x7e is 448, 0x08 is 2^-6, 0x01 is 2^-9. Half of that here.
    assert_eq!(
        [0x38, 0x7e, 0x08, 0x01, 0x00, 0x7f].map(fp4::ue4m3_half),
        [0.5, 224.0, 1.0 / 128.0, 1.0 / 1024.0, 0.0, 0.0]
    );
}

#[test]
fn sizes_are_checked() {
    let mut out = [0.0; 64];
    assert_eq!(
        dequantize(GgmlType::Q4_0, &[0; 18], &mut out[..31]),
        Err(QuantError::Values { ty: GgmlType::Q4_0, found: 31 })
    );
    assert_eq!(
        dequantize(GgmlType::Q4_0, &[0; 18], &mut out),
        Err(QuantError::Bytes { ty: GgmlType::Q4_0, expected: 36, found: 18 })
    );
    assert_eq!(
        quantize(GgmlType::IQ2_S, &[0.0; 256], &mut [0; 82]),
        Err(QuantError::NoQuantizer { ty: GgmlType::IQ2_S })
    );
    assert_eq!(quant::blocks::<simple::BlockQ4_0>(&[0; 36]).map(<[_]>::len), Some(2));
    assert!(quant::blocks::<simple::BlockQ4_0>(&[0; 35]).is_none());
}

/// Approximately normal values: sums of twelve uniform ones.
fn normal(count: usize, scale: f32) -> Vec<f32> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).map(|x| x * scale).collect()
}

/// Relative error ‖y − x‖ / ‖x‖ of a round trip.
fn round_trip_error(ty: GgmlType, values: &[f32]) -> f64 {
    let mut bytes = vec![0; ty.bytes_of(values.len()).unwrap()];
    quantize(ty, values, &mut bytes).unwrap();
    let found = values_of(ty, &bytes);
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let error = norm(&mut values.iter().zip(&found).map(|(&x, &y)| f64::from(y) - f64::from(x)));
    error / norm(&mut values.iter().map(|&x| f64::from(x)))
}

/// Round trips of normal values, each gate some 5% above what the reference method reaches. An ideal uniform
/// quantizer of b bits has about 0.27 at 2 bits and halves with every bit.
#[test]
fn reference_quantizers_err_little() {
    let gates = [
        (GgmlType::F32, 0.0),
        (GgmlType::F16, 2.2e-4),
        (GgmlType::BF16, 1.8e-3),
        (GgmlType::F64, 0.0),
        (GgmlType::Q4_0, 0.0893),
        (GgmlType::Q4_1, 0.082),
        (GgmlType::Q5_0, 0.0445),
        (GgmlType::Q5_1, 0.040),
        (GgmlType::Q8_0, 0.0056),
        (GgmlType::Q8_1, 0.0056),
        (GgmlType::Q2_K, 0.282),
        (GgmlType::Q3_K, 0.151),
        (GgmlType::Q4_K, 0.075),
        (GgmlType::Q5_K, 0.0373),
        (GgmlType::Q6_K, 0.0175),
        (GgmlType::Q8_K, 0.0072),
        (GgmlType::IQ4_NL, 0.083),
        (GgmlType::MXFP4, 0.118),
        (GgmlType::NVFP4, 0.1),
        (GgmlType::Q1_0, 0.63),
    ];
    let values = normal(64 * 256, 0.05);
    for (ty, gate) in gates {
        let error = round_trip_error(ty, &values);
        assert!(error <= gate, "{ty}: error {error}, gate {gate}");
        assert!(error >= gate * 0.9, "{ty}: error {error} is far below the gate {gate}");
    }
}

#[test]
fn exact_values_survive() {
    let ternary: Vec<f32> = (0..512).map(|i| (i * 7 % 3) as f32 * 0.25 - 0.25).collect();
    for ty in [GgmlType::TQ1_0, GgmlType::TQ2_0, GgmlType::Q2_0, GgmlType::Q8_0] {
        assert!(round_trip_error(ty, &ternary) < if ty == GgmlType::Q8_0 { 1e-3 } else { 1e-9 }, "{ty}");
    }
    let binary: Vec<f32> = (0..512).map(|i| if i % 3 == 0 { 0.5 } else { -0.5 }).collect();
    assert_eq!(round_trip_error(GgmlType::Q1_0, &binary), 0.0);
    let wide: Vec<f32> = (0..512).map(|i| (i * 7 % 4) as f32 * 0.25 - 0.25).collect();
    assert_eq!(round_trip_error(GgmlType::Q2_0, &wide), 0.0);
    let integers: Vec<f32> = (0..64).map(|i| i as f32 - 32.0).collect();
    for ty in [GgmlType::I8, GgmlType::I16, GgmlType::I32, GgmlType::I64] {
        assert_eq!(round_trip_error(ty, &integers), 0.0);
    }
}

/// Zeros, constants, single spikes and tiny values round to finite values near them.
#[test]
fn odd_blocks_stay_finite() {
    let spike =
        |at: usize, value: f32| (0..256).map(|i| if i == at { value } else { 0.0 }).collect::<Vec<f32>>();
    let inputs = [
        vec![0.0; 256],
        vec![-0.0; 256],
        vec![0.3; 256],
        vec![-2.0; 256],
        spike(0, 1.0),
        spike(255, -9.0),
        vec![1e-30; 256],
    ];
    for &ty in GgmlType::ALL {
        for input in &inputs {
            let mut bytes = vec![0; ty.bytes_of(256).unwrap()];
            if quantize(ty, input, &mut bytes).is_err() {
                continue;
            }
            let most = input.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
            for (&y, &x) in values_of(ty, &bytes).iter().zip(input) {
                assert!((y - x).abs() <= most * 1.05 + 1e-6, "{ty}: {x} became {y}");
            }
        }
    }
}

#[test]
fn sums_of_activation_blocks() {
    let values = normal(256, 1.0);
    let block = k::BlockQ8K::quantize(&values);
    for (sum, codes) in block.bsums.iter().zip(block.qs.chunks(16)) {
        assert_eq!(i16::from_le_bytes(*sum), codes.iter().map(|&q| i16::from(q)).sum::<i16>());
    }
    let block = simple::BlockQ8_1::quantize(&values[..32]);
    let mut out = [0.0; 32];
    block.dequantize(&mut out);
    assert!((quant::f16(block.s) - out.iter().sum::<f32>()).abs() < 0.02);
}
