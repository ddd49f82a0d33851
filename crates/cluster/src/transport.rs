//! Which way tasks of ours talk to each other, as a setting.

/// How tasks that are both ours talk to each other. With TensorFlow's tasks it is always gRPC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// Over lanes: values are sent as soon as they exist, between tasks of one host over Unix sockets.
    #[default]
    Auto,
    /// As TensorFlow's tasks do.
    Grpc,
}

impl Transport {
    /// By its name.
    pub fn parse(name: &str) -> Option<Transport> {
        match name {
            "auto" => Some(Transport::Auto),
            "grpc" => Some(Transport::Grpc),
            _ => None,
        }
    }
}
