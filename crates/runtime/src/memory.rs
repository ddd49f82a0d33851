//! What kernels may allocate, and what is said when they may not: how much was wanted, who holds what, and how much there is.

use crate::Device;
use downpour_graph::{Result, Status};
use downpour_tensor::account::{self, Refused};
use downpour_tensor::{DType, Shape};
use std::fmt::Write as _;

/// The most bytes that a tensor, a step, a session and the process may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Of one tensor.
    pub max_tensor_bytes: usize,
    /// Of everything that a step has made and that still exists.
    pub step: usize,
    /// Of everything that the steps of a session have made and that still exists.
    pub session: usize,
    /// Of everything together.
    pub process: usize,
}

impl MemoryBudget {
    /// A limit on single tensors only.
    pub fn per_tensor(max_tensor_bytes: usize) -> MemoryBudget {
        MemoryBudget {
            max_tensor_bytes,
            step: usize::MAX,
            session: usize::MAX,
            process: usize::MAX,
        }
    }

    /// A limit on everything together. A session gets nine tenths of it: whatever one holds, another can go on.
    pub fn of_process(bytes: usize) -> MemoryBudget {
        let session = bytes / 10 * 9;
        MemoryBudget {
            max_tensor_bytes: session,
            step: session,
            session,
            process: bytes,
        }
    }

    /// Refuses a tensor that would be too large even if there were nothing else, in TensorFlow's words.
    pub fn check(&self, dtype: DType, shape: &Shape, device: &str) -> Result<()> {
        let bytes = bytes_of(dtype, shape);
        match usize::try_from(bytes) {
            Ok(bytes) if bytes <= self.max_tensor_bytes => Ok(()),
            _ => Err(Status::resource_exhausted(format!(
                "{}: it needs {bytes} bytes, a tensor may have {}",
                oom(dtype, shape, device),
                self.max_tensor_bytes
            ))),
        }
    }
}

fn bytes_of(dtype: DType, shape: &Shape) -> u128 {
    // Strings count as their headers; their contents came from checked tensors.
    (shape.num_elements() as u128) * (dtype.size().unwrap_or(32) as u128)
}

fn oom(dtype: DType, shape: &Shape, device: &str) -> String {
    format!(
        "OOM when allocating tensor with shape{shape} and type {dtype} on {device} by allocator cpu"
    )
}

/// Something that keeps memory beyond a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// What it is: `variables`, `queues` or `tables`.
    pub kind: &'static str,
    /// How much it keeps.
    pub bytes: usize,
}

impl Device {
    /// Refuses an output for which there is no room, and keeps the room for it if there is: see [`account::reserve`].
    pub fn check_alloc(&self, dtype: DType, shape: &Shape) -> Result<()> {
        self.memory.check(dtype, shape, &self.name)?;
        let bytes = usize::try_from(bytes_of(dtype, shape)).unwrap_or(usize::MAX);
        account::reserve(bytes)
            .map_err(|refused| self.exhausted(&oom(dtype, shape, &self.name), &refused))
    }

    /// How large something may grow whose size nobody knows beforehand.
    pub fn room(&self) -> usize {
        let most = self.memory.max_tensor_bytes;
        account::room().map_or(most, |room| room.min(most))
    }

    /// What to say when something grew beyond [`Device::room`].
    pub fn no_room(&self, bytes: usize) -> Status {
        let refused = account::refusal(bytes);
        let what = format!(
            "OOM when allocating {bytes} bytes on {} by allocator cpu",
            self.name
        );
        match refused {
            Some(refused) => self.exhausted(&what, &refused),
            None => Status::resource_exhausted(format!(
                "{what}: a tensor may have {}",
                self.memory.max_tensor_bytes
            )),
        }
    }

    /// Turns a refusal into an error: what was wanted, and who holds what.
    pub fn exhausted(&self, what: &str, refused: &Refused) -> Status {
        const NAMED: usize = 5;
        let mut held = self.resources.held();
        held.sort_by(|a, b| (b.1.bytes, &a.0).cmp(&(a.1.bytes, &b.0)));
        let mut text = format!(
            "{what}: {refused}. The process holds {} of {} bytes",
            self.account.used(),
            self.account.limit()
        );
        let mut kept = 0;
        for (i, kind) in ["variables", "queues", "tables"].into_iter().enumerate() {
            let bytes: usize = (held.iter().filter(|(_, h)| h.kind == kind))
                .map(|(_, h)| h.bytes)
                .sum();
            let lead = if i == 0 { ':' } else { ',' };
            let _ = write!(text, "{lead} {kind} {bytes}");
            kept += bytes;
        }
        let steps = self.account.used().saturating_sub(kept);
        let _ = write!(text, ", steps {steps}");
        for (i, (name, held)) in held.iter().take(NAMED).enumerate() {
            let lead = if i == 0 { "; most in" } else { "," };
            let _ = write!(text, "{lead} {name} {}", held.bytes);
        }
        Status::resource_exhausted(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cancellation, Extensions, StepEnv, Variable};
    use downpour_tensor::Tensor;
    use downpour_tensor::account::{in_kernel, work_for};
    use std::sync::Arc;

    #[test]
    fn a_refusal_names_what_is_wanted_and_who_holds_the_rest() {
        let memory = MemoryBudget::of_process(10 << 20);
        let device = Device::cpu(
            "/device:CPU:0".into(),
            "j",
            1,
            1,
            memory,
            Extensions::default(),
        );
        let device = Arc::new(device);
        let env = Arc::new(StepEnv::new(7, device.clone(), Cancellation::new()));
        let _working = work_for(env);
        let value = Tensor::zeros(DType::Float, [1 << 20]).unwrap();
        let variable = Arc::new(Variable::with_value(value));
        device.resources.insert("j", "weights", variable.clone());
        let shape = Shape::from([1 << 20, 2]);
        let e = in_kernel(false, || device.check_alloc(DType::Float, &shape)).unwrap_err();
        assert_eq!(e.code, downpour_graph::Code::ResourceExhausted);
        for part in [
            "OOM when allocating tensor with shape[1048576,2] and type float on /device:CPU:0 by allocator cpu",
            "8388608 more bytes are needed",
            "variables 4194304",
            "most in weights 4194304",
        ] {
            assert!(e.message.contains(part), "{part}: {}", e.message);
        }
        assert!(device.resources.remove::<Variable>("j", "weights"));
        drop(variable);
        assert_eq!(device.account.used(), 0);
    }
}
