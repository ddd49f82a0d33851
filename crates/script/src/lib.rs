//! Tests as text: [`check_folder`] runs files of commands and compares what each prints with what the file says;
//! [`parse`] and [`show`] read and print graphs in the form that those files use. Only tests use this crate.

mod file;
mod parse;
mod show;
mod value;

pub use file::{Command, check_folder};
pub use parse::parse;
pub use show::{show, show_node};
pub use value::{parse_tensor, show_tensor};
