//! Programs of Downpour's Rust API for the conformance scripts to run as processes of their own.
//!
//! `train TRACE FLAGS…` is one task of a training that never ends and writes down each step
//! (`recovery.py`); `events DIR` trains a little and writes all that TensorBoard shows
//! (`tensorboard_reads.py`); `sandblaster FILE` minimizes a problem (`sandblaster.py`); `traffic
//! PARAMETERS` measures what a coordinator exchanges (`cargo xtask sandblaster --traffic`).

mod events;
mod sandblaster;
mod traffic;
mod train;

use anyhow::{Context as _, Result, bail};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut next = |what| args.next().context(what);
    match next("which program?")?.as_str() {
        "train" => train::run(&next("where is the trace?")?, args),
        "events" => events::run(&next("which directory?")?),
        "sandblaster" => sandblaster::run(&next("which problem?")?),
        "traffic" => traffic::run(&next("how many parameters?")?),
        other => bail!("no program '{other}'"),
    }
}
