//! The bytes of a client's calls: session, step, callable.

use bytes::Bytes;
use downpour_wire::messages::{
    CreateSessionRequest, ExtendSessionRequest, MakeCallableRequest, RunCallableRequest,
    RunStepRequest, RunStepResponse,
};
use downpour_wire::{Budget, WireMessage};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut seeds = downpour_fuzz::hex_lines("crates/wire/tests/fixtures/responses.txt");
    seeds.extend(downpour_fuzz::hex_lines(
        "crates/wire/tests/fixtures/tensors.txt",
    ));
    let graphs = downpour_fuzz::files("crates/wire/tests/fixtures", |n| n.ends_with(".pb"));
    // A graph as field 1 is a CreateSessionRequest.
    seeds.extend(graphs.into_iter().map(|g| {
        let mut bytes = vec![0x0a];
        let mut n = g.len();
        while n >= 0x80 {
            bytes.push(n as u8 | 0x80);
            n >>= 7;
        }
        bytes.push(n as u8);
        bytes.extend(g);
        bytes
    }));
    let budget = Budget {
        tensor_bytes: 16 << 20,
        elements: 1 << 16,
        ..Budget::default()
    };
    downpour_fuzz::fuzz("requests", seeds, |input| {
        let bytes = Bytes::copy_from_slice(input);
        let _ = CreateSessionRequest::from_bytes(bytes.clone(), &budget);
        let _ = ExtendSessionRequest::from_bytes(bytes.clone(), &budget);
        let _ = RunStepRequest::from_bytes(bytes.clone(), &budget);
        let _ = RunStepResponse::from_bytes(bytes.clone(), &budget);
        let _ = MakeCallableRequest::from_bytes(bytes.clone(), &budget);
        let _ = RunCallableRequest::from_bytes(bytes, &budget);
    })
}
