//! TensorProto bytes → tensor → bytes → the same tensor.

use bytes::Bytes;
use downpour_wire::codec::ServiceMessage;
use downpour_wire::{Budget, Meter, decode_tensor, encode_tensor, proto};
use std::process::ExitCode;

fn main() -> ExitCode {
    let seeds = downpour_fuzz::hex_lines("crates/wire/tests/fixtures/tensors.txt");
    let budget = Budget {
        tensor_bytes: 16 << 20,
        elements: 1 << 16,
        ..Budget::default()
    };
    downpour_fuzz::fuzz("tensor_proto", seeds, |input| {
        let bytes = Bytes::copy_from_slice(input);
        let Ok(message) = proto::TensorProto::from_wire(bytes, &budget) else {
            return;
        };
        let Ok(tensor) = decode_tensor(message, &mut Meter::from(&budget)) else {
            return;
        };
        let Ok(again) = encode_tensor(&tensor) else {
            return;
        };
        let again = decode_tensor(again, &mut Meter::from(&Budget::trusting()));
        let again = again.expect("what we wrote can be read");
        assert_eq!(again.shape(), tensor.shape());
        let bytes = |t: &downpour_tensor::Tensor| t.buffer().map(|b| b.as_bytes().to_vec());
        assert_eq!(bytes(&again), bytes(&tensor));
        assert_eq!(again.as_strings().ok(), tensor.as_strings().ok());
    })
}
