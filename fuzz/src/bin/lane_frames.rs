//! Bytes of a lane → frames → tensors, calls and errors.

use downpour_graph::Status;
use downpour_tensor::{Buffer, Tensor};
use downpour_wire::Budget;
use downpour_wire::lane::{self, HEADER, Header, Kind, Run, Sending, TensorFront};
use std::process::ExitCode;

fn main() -> ExitCode {
    let run = Run {
        step_id: 7,
        graph: 3,
        session: "00ab".to_owned(),
    };
    let mut seeds = vec![
        run.encode(1).to_vec(),
        lane::ended(1, Some(&Status::aborted("gone")), true).to_vec(),
        lane::empty(Kind::Ping, 0).to_vec(),
    ];
    let strings = Tensor::string("text");
    for tensor in [
        Some(Tensor::vector(vec![1.0f32; 5])),
        Some(Tensor::scalar(true)),
        Some(strings),
        Some(Tensor::vector(vec![1u8; lane::INLINE + 1])),
        None,
    ] {
        match lane::send(7, "/job:a;01;/job:b;v;0:0", tensor.as_ref(), 9) {
            Ok(Sending::Inline(front, rest)) => seeds.push([front, rest].concat()),
            Ok(Sending::Offered(front, _)) => seeds.push(front.to_vec()),
            Err(e) => panic!("{e}"),
        }
    }
    let budget = Budget {
        tensor_bytes: 16 << 20,
        elements: 1 << 16,
        ..Budget::default()
    };
    downpour_fuzz::fuzz("lane_frames", seeds, |input| {
        let mut rest = input;
        while let Some((front, after)) = rest.split_first_chunk::<HEADER>() {
            let Ok(header) = Header::parse(front) else {
                return;
            };
            assert_eq!(header.encode(), *front);
            let Some((payload, after)) = after.split_at_checked(header.len) else {
                return;
            };
            read(header.kind, payload, &budget);
            rest = after;
        }
    })
}

fn read(kind: Kind, payload: &[u8], budget: &Budget) {
    match kind {
        Kind::Run => {
            if let Ok(run) = Run::parse(payload) {
                assert_eq!(run.encode(1)[HEADER..], *payload);
            }
        }
        Kind::Ended => {
            let _ = lane::parse_status(payload);
        }
        Kind::Tensor => {
            if let Ok((front, bytes)) = TensorFront::parse(payload, budget) {
                let _ = front.with(Buffer::copy_from(bytes), budget);
            }
        }
        Kind::Offer => {
            let _ = TensorFront::parse_offer(payload, budget);
        }
        _ => {}
    }
}
