//! Whether a session is still known where it was opened: the only question that tells a session
//! that goes on from one whose end was never heard of. TensorFlow's masters answer it too.

use crate::{MasterCalls as _, RemoteMaster};
use downpour_graph::Code;
use downpour_wire::messages::ListDevicesRequest;
use std::sync::Arc;
use std::time::Duration;

impl RemoteMaster {
    /// Whether the master answers within `limit` and knows the session.
    pub async fn has_session(self: &Arc<Self>, handle: &str, limit: Duration) -> bool {
        let request = ListDevicesRequest {
            session_handle: handle.to_owned(),
        };
        let asked = self.clone().list_devices(request);
        match tokio::time::timeout(limit, asked).await {
            Ok(Ok(_)) => true,
            // "Session … is not found"; or nobody there, or one that is about to go.
            Ok(Err(e)) => !matches!(e.code, Code::InvalidArgument | Code::Unavailable),
            Err(_) => false,
        }
    }
}
