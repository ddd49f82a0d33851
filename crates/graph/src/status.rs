//! TensorFlow's status: a code and a message. Clients depend on both (python maps the code to an
//! exception class and reads texts), so this pair, not a Rust enum per failure, is what kernels,
//! sessions and services hand upwards.

use std::fmt;

/// TensorFlow's error codes, which are gRPC's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(
    missing_docs,
    reason = "each variant is the gRPC code of the same name"
)]
pub enum Code {
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    /// The code with this number; anything else (0 is OK, no error) is `Unknown`.
    pub fn from_number(number: i32) -> Code {
        const ALL: [Code; 16] = [
            Code::Cancelled,
            Code::Unknown,
            Code::InvalidArgument,
            Code::DeadlineExceeded,
            Code::NotFound,
            Code::AlreadyExists,
            Code::PermissionDenied,
            Code::ResourceExhausted,
            Code::FailedPrecondition,
            Code::Aborted,
            Code::OutOfRange,
            Code::Unimplemented,
            Code::Internal,
            Code::Unavailable,
            Code::DataLoss,
            Code::Unauthenticated,
        ];
        ALL.into_iter()
            .find(|c| *c as i32 == number)
            .unwrap_or(Code::Unknown)
    }

    /// TensorFlow's upper-case name.
    pub fn name(self) -> &'static str {
        match self {
            Code::Cancelled => "CANCELLED",
            Code::Unknown => "UNKNOWN",
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Code::NotFound => "NOT_FOUND",
            Code::AlreadyExists => "ALREADY_EXISTS",
            Code::PermissionDenied => "PERMISSION_DENIED",
            Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Code::FailedPrecondition => "FAILED_PRECONDITION",
            Code::Aborted => "ABORTED",
            Code::OutOfRange => "OUT_OF_RANGE",
            Code::Unimplemented => "UNIMPLEMENTED",
            Code::Internal => "INTERNAL",
            Code::Unavailable => "UNAVAILABLE",
            Code::DataLoss => "DATA_LOSS",
            Code::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

/// Why something failed, in TensorFlow's terms.
///
/// ```
/// use downpour_graph::{Code, Status};
/// let s = Status::invalid_argument(format!("rank must be {}, not {}", 2, 3));
/// assert_eq!((s.code, s.to_string()), (Code::InvalidArgument, "INVALID_ARGUMENT: rank must be 2, not 3".into()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Status {
    /// The kind of failure.
    pub code: Code,
    /// What failed, with which values.
    pub message: String,
    /// Whether this is only a consequence of another failure, which should be reported instead.
    pub derived: bool,
}

/// A result whose error is a [`Status`].
pub type Result<T, E = Status> = std::result::Result<T, E>;

macro_rules! constructors {
    ($($name:ident => $code:ident),* $(,)?) => {
        $(
            #[doc = concat!("A status with code `", stringify!($code), "`.")]
            pub fn $name(message: impl Into<String>) -> Status {
                Status::new(Code::$code, message)
            }
        )*
    };
}

impl Status {
    /// A status that is a cause, not a consequence.
    pub fn new(code: Code, message: impl Into<String>) -> Status {
        Status {
            code,
            message: message.into(),
            derived: false,
        }
    }

    /// Marks this as a consequence of another failure.
    pub fn as_derived(mut self) -> Status {
        self.derived = true;
        self
    }

    constructors! {
        cancelled => Cancelled, unknown => Unknown, invalid_argument => InvalidArgument,
        deadline_exceeded => DeadlineExceeded, not_found => NotFound,
        already_exists => AlreadyExists, permission_denied => PermissionDenied,
        resource_exhausted => ResourceExhausted, failed_precondition => FailedPrecondition,
        aborted => Aborted, out_of_range => OutOfRange, unimplemented => Unimplemented,
        internal => Internal, unavailable => Unavailable, data_loss => DataLoss,
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.message)
    }
}

impl std::error::Error for Status {}

impl From<downpour_tensor::ShapeError> for Status {
    fn from(e: downpour_tensor::ShapeError) -> Status {
        Status::invalid_argument(e.to_string())
    }
}

impl From<downpour_tensor::TensorError> for Status {
    /// A kernel that asked for the wrong type or length: its graph was checked, so this is ours. That
    /// an input is a scalar no graph promises.
    fn from(e: downpour_tensor::TensorError) -> Status {
        match e {
            downpour_tensor::TensorError::NotScalar(_) => Status::invalid_argument(e.to_string()),
            _ => Status::internal(e.to_string()),
        }
    }
}
