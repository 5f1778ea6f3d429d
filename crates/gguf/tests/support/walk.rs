//! Using everything of a file that may be anything: what the fuzz target and the corpus replay do.

use minfer_gguf::{Array, Gguf, Value, dequantize};

/// Opens `bytes` and reads all that an opened file offers. `None` if the file is refused.
pub(crate) fn walk(bytes: &[u8]) -> Option<Gguf> {
    let gguf = match Gguf::from_bytes(bytes.to_vec()) {
        Ok(gguf) => gguf,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return None;
        }
    };
    assert_eq!(gguf.file_bytes(), bytes.len() as u64);
    for (key, value) in gguf.metadata().iter() {
        assert_eq!(gguf.metadata().get(key).map(Value::value_type), Some(value.value_type()));
        let _ = (gguf.metadata().u32(key), gguf.metadata().f32(key), gguf.metadata().str(key));
        let _ = (gguf.metadata().u32s(key), gguf.metadata().f32s(key), gguf.metadata().u32_per_layer(key, 2));
        if let Value::Array(Array::Strings(strings)) = value {
            let total: usize = strings.iter().map(<[u8]>::len).sum();
            assert!(total <= bytes.len());
            assert_eq!(strings.iter().last(), strings.len().checked_sub(1).and_then(|i| strings.get(i)));
        }
    }
    for tensor in gguf.tensors() {
        let found = gguf.tensor(tensor.name()).expect("listed, so there");
        assert_eq!(found.file_offset(), tensor.file_offset());
        let (ty, data) = (tensor.ty(), tensor.data());
        assert_eq!(tensor.dims().iter().product::<u64>(), tensor.elements());
        assert_eq!(ty.bytes_of(tensor.elements() as usize), Some(data.len()));
        if let Some(block) = data.get(..ty.block_bytes()) {
            dequantize(ty, block, &mut vec![0.0; ty.block_len()]).expect("a whole block");
        }
    }
    Some(gguf)
}
