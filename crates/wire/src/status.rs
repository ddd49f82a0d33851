//! [`Status`] ⇄ `tonic::Status`. The numbers are the same; the `derived` flag travels as the
//! payload TensorFlow uses for it, and what a broken connection looks like becomes UNAVAILABLE,
//! which is what TensorFlow's recovery waits for.

use crate::proto::GrpcPayloadContainer;
use bytes::Bytes;
use downpour_graph::{Code, Status};
use prost::Message as _;
use std::error::Error as _;

/// Longest message put in a gRPC status: it travels in an HTTP/2 header.
const MAX_MESSAGE: usize = 3072;
const DERIVED: &str = "type.googleapis.com/tensorflow.DerivedStatus";

/// The gRPC status of a failed call.
pub fn to_tonic(status: Status) -> tonic::Status {
    let code = tonic::Code::from_i32(status.code as i32);
    let mut message = status.message;
    if message.len() > MAX_MESSAGE {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        message.push_str(" ... [truncated]");
    }
    if !status.derived {
        return tonic::Status::new(code, message);
    }
    let payloads = GrpcPayloadContainer {
        payloads: [(DERIVED.to_owned(), Bytes::new())].into(),
    };
    tonic::Status::with_details(code, message, payloads.encode_to_vec().into())
}

/// What a failed call says.
pub fn from_tonic(status: &tonic::Status) -> Status {
    let mut code = Code::from_number(status.code() as i32);
    // A status with a source was made on this side, from an error of the transport.
    let lost = status.message() == "Stream removed" || status.source().is_some();
    if code == Code::Unknown && lost {
        code = Code::Unavailable;
    }
    // Details that are not TensorFlow's container say nothing about derivation.
    let derived = GrpcPayloadContainer::decode(status.details())
        .is_ok_and(|container| container.payloads.contains_key(DERIVED));
    Status {
        code,
        message: status.message().to_owned(),
        derived,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_and_the_derived_flag_survive_the_round_trip() {
        for number in 1..=16 {
            for derived in [false, true] {
                let status = Status {
                    code: Code::from_number(number),
                    message: "what happened: naïve".into(),
                    derived,
                };
                let tonic = to_tonic(status.clone());
                assert_eq!(tonic.code() as i32, number);
                assert_eq!(tonic.details().is_empty(), !derived);
                assert_eq!(from_tonic(&tonic), status);
            }
        }
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let cut = |text: String| to_tonic(Status::internal(text)).message().to_owned();
        assert_eq!(cut("x".repeat(3072)), "x".repeat(3072));
        assert_eq!(cut("x".repeat(3073)), "x".repeat(3072) + " ... [truncated]");
        assert_eq!(
            cut("x".repeat(3071) + "é"),
            "x".repeat(3071) + " ... [truncated]"
        );
    }

    #[test]
    fn a_lost_connection_is_unavailable() {
        let removed = tonic::Status::unknown("Stream removed");
        assert_eq!(from_tonic(&removed).code, Code::Unavailable);
        let said = tonic::Status::unknown("something else");
        assert_eq!(from_tonic(&said).code, Code::Unknown);
        let broken = tonic::Status::from_error(Box::new(std::io::Error::other("reset")));
        assert_eq!(from_tonic(&broken).code, Code::Unavailable);
    }

    #[test]
    fn foreign_details_are_ignored() {
        let tonic = tonic::Status::with_details(
            tonic::Code::Aborted,
            "gone",
            Bytes::from_static(b"\xff\xff not a container"),
        );
        assert_eq!(from_tonic(&tonic), Status::aborted("gone"));
    }
}
