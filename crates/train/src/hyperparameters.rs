//! What was chosen before a training, as TensorBoard's table of hyperparameters reads it: one summary whose metadata is
//! for the plugin `hparams` and holds a `SessionStartInfo`.

/// The summary's tag.
pub(crate) const TAG: &str = "_hparams_/session_start_info";

/// What was chosen.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Hyperparameter {
    /// As a learning rate.
    Number(f64),
    /// As the name of an optimizer.
    Text(String),
    /// As whether training is synchronous.
    Flag(bool),
}

impl From<f64> for Hyperparameter {
    fn from(number: f64) -> Hyperparameter {
        Hyperparameter::Number(number)
    }
}

impl From<&str> for Hyperparameter {
    fn from(text: &str) -> Hyperparameter {
        Hyperparameter::Text(text.to_owned())
    }
}

impl From<bool> for Hyperparameter {
    fn from(flag: bool) -> Hyperparameter {
        Hyperparameter::Flag(flag)
    }
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A field that is a text or a message.
fn bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend(bytes);
}

fn double(out: &mut Vec<u8>, field: u64, value: f64) {
    varint(out, field << 3 | 1);
    out.extend(value.to_le_bytes());
}

/// A `google.protobuf.Value`.
fn value(of: &Hyperparameter) -> Vec<u8> {
    let mut out = Vec::new();
    match of {
        Hyperparameter::Number(number) => double(&mut out, 2, *number),
        Hyperparameter::Text(text) => bytes(&mut out, 3, text.as_bytes()),
        Hyperparameter::Flag(flag) => {
            varint(&mut out, 4 << 3);
            varint(&mut out, u64::from(*flag));
        }
    }
    out
}

/// A serialized `SummaryMetadata`, of a session that began at a time in seconds since 1970.
pub(crate) fn metadata(chosen: &[(&str, Hyperparameter)], began: f64) -> Vec<u8> {
    let mut session = Vec::new();
    for (name, of) in chosen {
        let mut entry = Vec::new();
        bytes(&mut entry, 1, name.as_bytes());
        bytes(&mut entry, 2, &value(of));
        bytes(&mut session, 1, &entry);
    }
    double(&mut session, 5, began);
    let mut content = Vec::new();
    bytes(&mut content, 3, &session);
    let mut plugin = Vec::new();
    bytes(&mut plugin, 1, b"hparams");
    bytes(&mut plugin, 2, &content);
    let mut metadata = Vec::new();
    bytes(&mut metadata, 1, &plugin);
    metadata
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_encoded_as_protobuf_has_them() {
        assert_eq!(value(&true.into()), [0x20, 1]);
        assert_eq!(value(&"ab".into()), [0x1a, 2, b'a', b'b']);
        assert_eq!(value(&1.0.into()), [0x11, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
        let long = "x".repeat(200);
        assert_eq!(value(&long.as_str().into())[..3], [0x1a, 0xc8, 1]);
    }
}
