//! What `--version` says: version, commit, target, features. Reports of faults begin with it.

/// A macro that is one of two texts: `concat!` takes literals only.
macro_rules! either {
    ($name:ident, $with:meta, $yes:literal, $no:literal) => {
        #[cfg($with)]
        macro_rules! $name {
            () => {
                $yes
            };
        }
        #[cfg(not($with))]
        macro_rules! $name {
            () => {
                $no
            };
        }
    };
}
either!(linking, target_feature = "crt-static", "static", "dynamic");
either!(elections, feature = "coordination", ", coordination", "");
either!(images, mnist, ", mnist", "");

/// One line: `-V`.
pub(crate) const SHORT: &str = env!("CARGO_PKG_VERSION");

/// `--version`.
pub(crate) const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit    ",
    env!("BUILD_COMMIT"),
    "\ntarget    ",
    env!("BUILD_TARGET"),
    "\nfeatures  ",
    linking!(),
    elections!(),
    images!()
);
