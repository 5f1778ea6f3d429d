//! Files put together by hand, so that they can be wrong in any way. Independent of the crate's writer.

/// Bytes of a file, field by field.
#[derive(Clone, Default)]
pub(crate) struct Raw(pub(crate) Vec<u8>);

impl Raw {
    /// Magic, version and counts.
    pub(crate) fn header(version: u32, tensors: u64, keys: u64) -> Raw {
        Raw(b"GGUF".to_vec()).u32(version).u64(tensors).u64(keys)
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Raw {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn u32(self, value: u32) -> Raw {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Raw {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn string(self, string: &[u8]) -> Raw {
        self.u64(string.len() as u64).bytes(string)
    }

    /// A key and the id of its value's type.
    pub(crate) fn key(self, key: &str, value_type: u32) -> Raw {
        self.string(key.as_bytes()).u32(value_type)
    }

    /// A key of type u32.
    pub(crate) fn key_u32(self, key: &str, value: u32) -> Raw {
        self.key(key, 4).u32(value)
    }

    /// A key that is an array, up to its element count.
    pub(crate) fn key_array(self, key: &str, element_type: u32, count: u64) -> Raw {
        self.key(key, 9).u32(element_type).u64(count)
    }

    /// An entry of the tensor table.
    pub(crate) fn tensor(self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Raw {
        let raw = self.string(name.as_bytes()).u32(dims.len() as u32);
        dims.iter().fold(raw, |raw, &dim| raw.u64(dim)).u32(ty).u64(offset)
    }

    /// Zeros up to a multiple of `alignment`.
    pub(crate) fn pad(mut self, alignment: usize) -> Raw {
        self.0.resize(self.0.len().next_multiple_of(alignment), 0);
        self
    }

    /// `count` bytes of data.
    pub(crate) fn data(mut self, count: usize) -> Raw {
        self.0.extend((0..count).map(|i| i as u8));
        self
    }
}

/// A sound file with one key of every kind and three tensors, of which the last ends with the file.
pub(crate) fn valid() -> Vec<u8> {
    Raw::header(3, 3, 6)
        .key("general.architecture", 8)
        .string(b"llama")
        .key_u32("general.alignment", 32)
        .key("llama.rope.freq_base", 6)
        .u32(10_000f32.to_bits())
        .key("tokenizer.ggml.add_bos_token", 7)
        .bytes(&[1])
        .key_array("tokenizer.ggml.tokens", 8, 3)
        .string(b"a")
        .string(b"")
        .string(b"\xff\xfe")
        .key_array("tokenizer.ggml.token_type", 5, 3)
        .u32(1)
        .u32(3)
        .u32(6)
        .tensor("token_embd.weight", &[32, 3], 8, 0) // Q8_0: 102 bytes
        .tensor("output_norm.weight", &[3], 0, 128) // F32: 12 bytes
        .tensor("output.weight", &[32, 4], 2, 160) // Q4_0: 72 bytes
        .pad(32)
        .data(160 + 72)
        .0
}
