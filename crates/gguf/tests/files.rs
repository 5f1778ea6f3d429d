//! Sound files: what another writer wrote is read, and what is written is read back.

use std::path::Path;
use std::sync::Arc;

use minfer_gguf::{
    Array, GgmlType, Gguf, Metadata, Problem, SharedBytes, Strings, TensorSpec, Value, Writer, random_blocks,
    to_bytes,
};
use proptest::prelude::*;

/// The path of `tests/golden/gguf/every.gguf`.
fn every() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gguf/every.gguf")
}

/// Against `tests/golden/gguf/make.py`.
#[test]
fn every_value_type_of_the_python_writer_is_read() {
    let gguf = Gguf::open(&every()).unwrap();
    let metadata = gguf.metadata();
    assert_eq!(gguf.version(), 3);
    assert_eq!(gguf.paths().collect::<Vec<_>>(), [every()]);
    assert_eq!(gguf.file_bytes(), std::fs::metadata(every()).unwrap().len());
    let expected: [(&str, Value); 24] = [
        ("one.u8", 200u8.into()),
        ("one.i8", (-100i8).into()),
        ("one.u16", 60_000u16.into()),
        ("one.i16", (-30_000i16).into()),
        ("one.u32", 4_000_000_000u32.into()),
        ("one.i32", (-2_000_000_000i32).into()),
        ("one.u64", (1u64 << 63).into()),
        ("one.i64", (-(1i64 << 62)).into()),
        ("one.f32", 0.1f32.into()),
        ("one.f64", 0.1f64.into()),
        ("one.bool", true.into()),
        ("one.string", "Grüße 🦙".into()),
        ("many.u8", vec![0u8, 255].into()),
        ("many.i8", vec![-128i8, 127].into()),
        ("many.u16", vec![0u16, 65535].into()),
        ("many.i16", vec![-32768i16, 32767].into()),
        ("many.u32", vec![0u32, u32::MAX].into()),
        ("many.i32", vec![i32::MIN, i32::MAX].into()),
        ("many.u64", vec![1, u64::MAX].into()),
        ("many.i64", vec![i64::MIN, 5].into()),
        ("many.f32", vec![0.5f32, -0.1].into()),
        ("many.f64", vec![0.5f64, -0.1].into()),
        ("many.bool", vec![true, false, true].into()),
        ("many.string", Strings::from_iter(["a", "", "Ġthe", "▁la"]).into()),
    ];
    for (key, value) in &expected {
        assert_eq!(metadata.get(key), Some(value), "{key}");
    }
    assert_eq!(metadata.len(), 2 + expected.len()); // and the architecture and the alignment

    let tensors: Vec<_> = gguf.tensors().map(|tensor| (tensor.name(), tensor.ty(), tensor.dims())).collect();
    assert_eq!(
        tensors,
        [
            ("matrix", GgmlType::F32, &[3, 2][..]),
            ("halves", GgmlType::F16, &[2, 2, 2, 1][..]),
            ("blocks", GgmlType::Q8_0, &[64, 3][..]),
        ]
    );
    let matrix: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
    assert_eq!(gguf.tensor("matrix").unwrap().data(), matrix);
    assert_eq!(gguf.tensor("blocks").unwrap().data(), (0..3 * 2 * 34).map(|i| i as u8).collect::<Vec<_>>());
    assert!(gguf.tensors().all(|tensor| tensor.file_offset() % 64 == 0));
    assert!(gguf.tensor("absent").is_none());
    let error = gguf.require_tensor("absent").unwrap_err().to_string();
    assert!(error.contains("every.gguf") && error.contains("\"absent\" is missing"), "{error}");
}

#[test]
fn getters_convert_and_refuse_by_name() {
    let gguf = Gguf::open(&every()).unwrap();
    let metadata = gguf.metadata();
    assert_eq!(metadata.u32("one.u8").unwrap(), Some(200));
    assert_eq!(metadata.u64("one.u64").unwrap(), Some(1 << 63));
    assert_eq!(metadata.i32("one.i8").unwrap(), Some(-100));
    assert_eq!(metadata.f32("one.f64").unwrap(), Some(0.1));
    assert_eq!(metadata.bool("one.bool").unwrap(), Some(true));
    assert_eq!(metadata.str("one.string").unwrap(), Some("Grüße 🦙"));
    assert_eq!(metadata.u32("absent").unwrap(), None);
    assert_eq!(metadata.u32s("many.u16").unwrap(), Some(vec![0, 65535]));
    assert_eq!(metadata.i32s("many.i8").unwrap(), Some(vec![-128, 127]));
    assert_eq!(metadata.f32s("many.f64").unwrap(), Some(vec![0.5, -0.1]));
    assert_eq!(metadata.bools("many.bool").unwrap(), Some(&[true, false, true][..]));
    assert_eq!(
        metadata.strings("many.string").unwrap().and_then(|strings| strings.get(2)),
        Some("Ġthe".as_bytes())
    );
    assert_eq!(metadata.strings("many.string").unwrap().and_then(|strings| strings.get(4)), None);
    assert_eq!(metadata.u32_per_layer("one.u8", 3).unwrap(), Some(vec![200; 3]));
    assert_eq!(metadata.u32_per_layer("many.u16", 2).unwrap(), Some(vec![0, 65535]));

    let message = |error: minfer_gguf::Error| error.to_string();
    let refusals = [
        (
            message(metadata.u32("one.i8").unwrap_err()),
            "\"one.i8\": expected an integer that fits in u32, found i8 -100",
        ),
        (message(metadata.u32("one.u64").unwrap_err()), "found u64 9223372036854775808"),
        (
            message(metadata.u32("one.string").unwrap_err()),
            "\"one.string\": expected an integer that fits in u32, found string",
        ),
        (message(metadata.f32("one.u8").unwrap_err()), "expected f32, found u8 200"),
        (message(metadata.str("many.f32").unwrap_err()), "expected string, found array of f32 of length 2"),
        (message(metadata.u32s("many.i8").unwrap_err()), "found array of i8 of length 2"),
        (
            message(metadata.u32_per_layer("many.u16", 3).unwrap_err()),
            "an array of 3 integers, found array of u16 of length 2",
        ),
        (message(metadata.require_u32("a.b").unwrap_err()), "key \"a.b\" is missing; expected an integer"),
        (
            message(metadata.require_strings("a.b").unwrap_err()),
            "key \"a.b\" is missing; expected array of string",
        ),
    ];
    for (found, expected) in refusals {
        assert!(
            found.contains("every.gguf") && found.contains(expected),
            "expected \"{expected}\" in: {found}"
        );
    }
}

#[test]
fn shared_bytes_outlive_their_model() {
    let gguf = Arc::new(Gguf::open(&every()).unwrap());
    let expected = gguf.tensor("blocks").unwrap().data().to_vec();
    let shared = gguf.share("blocks").unwrap();
    assert!(gguf.share("absent").is_none());
    drop(gguf);
    assert_eq!(*shared, expected);
    let row = shared.slice(68..136);
    // What is given back is read again.
    shared.forget();
    row.forget();
    assert_eq!(*shared, expected);
    drop(shared);
    assert_eq!(row.slice(0..34)[..], expected[68..102]);
    assert_eq!(*SharedBytes::from(expected.clone()).slice(3..7), expected[3..7]);
}

/// Reading a file of another writer and writing it again gives the same bytes.
#[test]
fn a_file_survives_being_rewritten() {
    let bytes = std::fs::read(every()).unwrap();
    let gguf = Gguf::from_bytes(bytes.clone()).unwrap();
    let tensors: Vec<_> =
        gguf.tensors().map(|t| (TensorSpec::new(t.name(), t.ty(), t.dims()), t.data())).collect();
    assert!(to_bytes(gguf.metadata(), &tensors).unwrap() == bytes);
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        any::<u16>().prop_map(Value::from),
        any::<i16>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f32>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        any::<Vec<u8>>().prop_map(Value::string),
    ]
}

fn array() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<Vec<u8>>().prop_map(Value::from),
        any::<Vec<i8>>().prop_map(Value::from),
        any::<Vec<u16>>().prop_map(Value::from),
        any::<Vec<i16>>().prop_map(Value::from),
        any::<Vec<u32>>().prop_map(Value::from),
        any::<Vec<i32>>().prop_map(Value::from),
        any::<Vec<u64>>().prop_map(Value::from),
        any::<Vec<i64>>().prop_map(Value::from),
        any::<Vec<f32>>().prop_map(Value::from),
        any::<Vec<f64>>().prop_map(Value::from),
        any::<Vec<bool>>().prop_map(Value::from),
        any::<Vec<Vec<u8>>>().prop_map(|strings| Strings::from_iter(strings).into()),
    ]
}

/// Keys and values, tensors of small random shapes with their data, and an alignment.
fn model() -> impl Strategy<Value = (Metadata, Vec<(TensorSpec, Vec<u8>)>)> {
    let keys = prop::collection::btree_map("[a-z.ü]{1,20}", prop_oneof![scalar(), array()], 0..12);
    let shape = (prop::sample::select(GgmlType::ALL), 0u64..3, prop::collection::vec(0u64..4, 0..4));
    let tensors = prop::collection::btree_map("[a-z0-9._]{1,30}", shape, 0..8);
    (keys, tensors, prop::option::of(0u32..9)).prop_map(|(keys, shapes, alignment)| {
        let mut metadata = Metadata::new();
        keys.into_iter().for_each(|(key, value)| metadata.set(&key, value));
        if let Some(alignment) = alignment {
            metadata.set("general.alignment", 1u32 << alignment);
        }
        let tensors = shapes.into_iter().map(|(name, (ty, blocks, rest))| {
            let spec = TensorSpec::new(name, ty, [&[blocks * ty.block_len() as u64], &rest[..]].concat());
            let mut data = vec![0; spec.bytes().unwrap() as usize];
            random_blocks(ty, 1, 1.0, 0, &mut data).unwrap();
            (spec, data)
        });
        (metadata, tensors.collect())
    })
}

/// Asserts that `gguf` holds exactly `metadata` (beside keys of splitting) and `tensors`. NaN is compared by its text.
fn assert_same(gguf: &Gguf, metadata: &Metadata, tensors: &[(TensorSpec, Vec<u8>)]) {
    let found: Vec<_> = gguf.metadata().iter().filter(|(key, _)| !key.starts_with("split.")).collect();
    assert_eq!(format!("{found:?}"), format!("{:?}", metadata.iter().collect::<Vec<_>>()));
    assert_eq!(gguf.tensors().len(), tensors.len());
    for (tensor, (spec, data)) in gguf.tensors().zip(tensors) {
        assert_eq!((tensor.name(), tensor.ty(), tensor.dims()), (&*spec.name, spec.ty, &*spec.dims));
        assert!(tensor.data() == data);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_back((metadata, tensors) in model(), piece in 1usize..5000, part_bytes in 0u64..20_000) {
        let borrowed: Vec<_> = tensors.iter().map(|(spec, data)| (spec.clone(), &data[..])).collect();
        let bytes = to_bytes(&metadata, &borrowed).unwrap();
        assert_same(&Gguf::from_bytes(bytes.clone()).unwrap(), &metadata, &tensors);

        let folder = tempfile::tempdir().unwrap();
        let specs: Vec<_> = tensors.iter().map(|(spec, _)| spec.clone()).collect();
        let write_all = |mut writer: Writer| {
            for (_, data) in &tensors {
                data.chunks(piece).try_for_each(|piece| writer.write(piece)).unwrap();
            }
            writer.finish().unwrap();
        };
        let path = folder.path().join("whole.gguf");
        write_all(Writer::create(&path, &metadata, &specs).unwrap());
        prop_assert!(std::fs::read(&path).unwrap() == bytes);
        std::fs::remove_file(&path).unwrap();

        write_all(Writer::create_split(&folder.path().join("parts"), &metadata, &specs, part_bytes).unwrap());
        let mut parts: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|part| part.unwrap().path()).collect();
        parts.sort();
        for part in &parts {
            let gguf = Gguf::open(part).unwrap();
            assert_same(&gguf, &metadata, &tensors);
            prop_assert_eq!(gguf.paths().collect::<Vec<_>>(), parts.iter().map(|part| part.as_path()).collect::<Vec<_>>());
        }
    }
}

/// A split model of three parts in `folder`, one tensor each.
fn write_parts(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    let specs = ["a", "b", "c"].map(|name| TensorSpec::new(name, GgmlType::F32, [4]));
    let mut writer = Writer::create_split(&folder.join("m"), &metadata, &specs, 16).unwrap();
    (0..3).for_each(|_| writer.write(&[7; 16]).unwrap());
    writer.finish().unwrap();
    (1..=3).map(|no| folder.join(format!("m-{no:05}-of-00003.gguf"))).collect()
}

#[test]
fn split_models_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let parts = write_parts(folder.path());
    let gguf = Gguf::open(&parts[1]).unwrap();
    assert_eq!(gguf.metadata().str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(gguf.tensor("c").unwrap().path(), parts[2]);
    drop(gguf);

    let refused = |path: &Path, expected: &[&str]| {
        let error = Gguf::open(path).unwrap_err();
        assert!(matches!(*error.problem, Problem::Split(_) | Problem::DuplicateTensor { .. }), "{error}");
        let message = error.to_string();
        expected.iter().for_each(|part| assert!(message.contains(part), "expected \"{part}\" in: {message}"));
    };
    // One part alone, in memory.
    let error = Gguf::from_bytes(std::fs::read(&parts[0]).unwrap()).unwrap_err().to_string();
    assert!(error.contains("split model"), "{error}");
    // A name that does not tell where the others are.
    let renamed = folder.path().join("model.gguf");
    std::fs::copy(&parts[0], &renamed).unwrap();
    refused(&renamed, &["model.gguf", "part 1 of 3", "NAME-00001-of-00003.gguf"]);
    // A name of another part.
    let swapped = folder.path().join("other-00002-of-00003.gguf");
    std::fs::copy(&parts[0], &swapped).unwrap();
    refused(&swapped, &["name says part 2 of 3", "keys say part 1 of 3"]);
    // A missing part, named.
    let third = std::fs::read(&parts[2]).unwrap();
    std::fs::remove_file(&parts[2]).unwrap();
    refused(&parts[0], &["m-00003-of-00003.gguf", "part 3 of 3 is missing"]);
    // A part in the place of another.
    std::fs::copy(&parts[1], &parts[2]).unwrap();
    refused(&parts[0], &["m-00003-of-00003.gguf", "expected split.no 2", "found 1"]);
    // Parts with too few tensors.
    let mut keys = Metadata::new();
    keys.set("split.no", 2u16);
    keys.set("split.count", 3u16);
    keys.set("split.tensors.count", 3);
    std::fs::write(&parts[2], to_bytes(&keys, &[]).unwrap()).unwrap();
    refused(&parts[0], &["expected 3 tensors, found 2"]);
    // A tensor in two parts.
    let again = (TensorSpec::new("a", GgmlType::F32, [4]), &[0; 16][..]);
    std::fs::write(&parts[2], to_bytes(&keys, &[again]).unwrap()).unwrap();
    refused(&parts[0], &["m-00003-of-00003.gguf", "\"a\" occurs twice"]);
    std::fs::write(&parts[2], third).unwrap();
    assert_eq!(Gguf::open(&parts[2]).unwrap().tensors().len(), 3);
}

#[test]
fn a_writer_refuses_what_no_reader_accepts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let empty = Metadata::new();
    let refused = |metadata: &Metadata, specs: &[TensorSpec], expected: &str| {
        let message = Writer::create(&path, metadata, specs).err().expect(expected).to_string();
        assert!(message.contains(expected), "expected \"{expected}\" in: {message}");
    };
    let spec = |name: &str, dims: &[u64]| TensorSpec::new(name, GgmlType::Q4_0, dims);
    refused(&empty, &[spec("a", &[33])], "tensor \"a\": its rows of 33 values are not whole Q4_0 blocks");
    refused(&empty, &[spec("", &[32])], "it has no name");
    refused(&empty, &[spec("a", &[32]), spec("a", &[32])], "two of this name");
    refused(&empty, &[spec("a", &[32, 1, 1, 1, 1])], "more than four");
    refused(&empty, &[spec("a", &[1 << 40, 1 << 40])], "overflows");
    let mut bad = Metadata::new();
    bad.set("general.alignment", 3u32);
    refused(&bad, &[], "general.alignment");

    let mut writer = Writer::create(&path, &empty, &[spec("a", &[32])]).unwrap();
    let message = writer.write(&[0; 19]).unwrap_err().to_string();
    assert!(message.contains("tensor \"a\"") && message.contains("18 bytes are left"), "{message}");
    writer.write(&[0; 17]).unwrap();
    let message = writer.finish().unwrap_err().to_string();
    assert!(message.contains("tensor \"a\": 1 of its bytes were not given"), "{message}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "temporary files stay");
}

#[test]
fn an_existing_file_is_replaced_only_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, "old").unwrap();
    let writer = Writer::create(&path, &Metadata::new(), &[]).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    writer.finish().unwrap();
    assert_eq!(Gguf::open(&path).unwrap().tensors().len(), 0);
}

#[test]
fn metadata_keeps_its_order_and_replaces_in_place() {
    let mut metadata = Metadata::new();
    metadata.set("z", 1u32);
    metadata.set("a", 2u32);
    metadata.set("m", vec![1u8]);
    metadata.set("z", Value::Array(Array::Bool(Box::new([true]))));
    assert_eq!(metadata.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["z", "a", "m"]);
    assert_eq!(metadata.bools("z").unwrap(), Some(&[true][..]));
    assert!(metadata.contains("m") && !metadata.contains("b"));
}
