//! Instructions.
