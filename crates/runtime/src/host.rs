//! What kernels may know of the machine they run on, lent by the server: the runtime itself reads no clock.

/// The machine and its time. Lent to kernels through their device's extensions.
#[derive(Clone, Debug)]
pub struct Host {
    /// The machine's name, which event files carry in theirs.
    pub name: String,
    /// Nanoseconds since 1970.
    pub now_ns: fn() -> i64,
}

impl Host {
    /// Microseconds since 1970.
    pub fn now_micros(&self) -> u64 {
        u64::try_from((self.now_ns)() / 1000).unwrap_or(0)
    }

    /// Seconds since 1970.
    pub fn now_seconds(&self) -> f64 {
        self.now_micros() as f64 / 1e6
    }
}
