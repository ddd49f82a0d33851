//! Every number that bounds what a peer may ask for, with its reason.

use std::time::Duration;

/// Limits of one server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one gRPC message, either way. TensorFlow's own limit: protobuf cannot go beyond.
    pub message_bytes: usize,
    /// Request ids remembered to refuse repeats. TensorFlow's number.
    pub remembered_requests: usize,
    /// Shared steps a task keeps that it does not run: wanted early, or left by a master that died.
    /// The oldest make room.
    pub idle_steps: usize,
    /// Steps a task remembers to be over, so that whoever comes late for a value does not wait.
    pub ended_steps: usize,
    /// Sessions one master holds. A client that never closes is refused at some point instead of
    /// taking the task's memory.
    pub sessions: usize,
    /// Compiled graphs one session keeps; the least recently used is dropped beyond.
    pub plans_per_session: usize,
    /// HTTP/2 streams one connection may have open: more wait their turn at the client.
    pub streams_per_connection: u32,
    /// Streams a peer may reset before they were answered, before its connection is closed: the
    /// rapid-reset attack.
    pub pending_resets: usize,
    /// Bytes of request headers.
    pub header_bytes: u32,
    /// How long a connection may be silent before it is pinged.
    pub keepalive: Duration,
    /// How long connecting to another task may take before the call fails.
    pub connect: Duration,
    /// Within what time a task that others wait for, and that is silent, counts as lost.
    pub silence: Duration,
    /// How long opening a session may wait for tasks that do not answer, if its client sets no
    /// deadline. Without one it waits as long as the client does, as TensorFlow's.
    pub find: Option<Duration>,
    /// How long something may take before the log says what it waits for, and how often again.
    pub progress: Duration,
    /// How long a session may outlive the connection of its client without being used. Long, as
    /// gRPC itself drops a connection that was idle for half an hour.
    pub lease: Duration,
    /// How long to wait for open calls when the server stops.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            message_bytes: i32::MAX as usize,
            remembered_requests: 10_000,
            idle_steps: 10_000,
            ended_steps: 10_000,
            sessions: 10_000,
            plans_per_session: 4096,
            streams_per_connection: 1024,
            pending_resets: 256,
            header_bytes: 64 << 10,
            keepalive: Duration::from_secs(60),
            connect: Duration::from_secs(5),
            silence: Duration::from_secs(5),
            find: None,
            progress: Duration::from_secs(10),
            lease: Duration::from_secs(24 * 3600),
            drain: Duration::from_secs(2),
        }
    }
}
