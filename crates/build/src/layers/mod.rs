//! Layers: pieces of models with their variables, named as TensorFlow's layers name them. A layer
//! is made once and may be applied to several tensors, which then share its variables.

mod attention;
mod conv;
mod dense;
mod local;
mod norm;
mod recurrent;
mod shard;
mod split;

pub use attention::MultiHeadAttention;
pub use conv::Conv2D;
pub use dense::{Dense, Embedding, dropout};
pub use local::{LocallyConnected2D, SplitLocallyConnected2D, Window};
pub use norm::{BatchNorm, LayerNorm};
pub use recurrent::{LstmCell, LstmState};
pub use shard::Sharded;
pub use split::{ColumnDense, RowDense, SplitConv2D};
