//! AArch64: not built yet.
