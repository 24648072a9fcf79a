//! Machine profiles: geometry and costs, each figure with its source.
//!
//! A profile is a TOML file. Lengths of time are nanoseconds (`value`) or clock cycles (`cycles`).
//! Every figure is `{ value = 90, source = "…" }` or `{ value = 90, assumed = "why" }`; nothing is
//! defaulted, so that a profile states a whole machine. The nine profiles of the tree are built in
//! ([`Profile::named`]); others are read from files ([`Profile::load`]).
//!
//! [`Costs`] is the same in the engine's units, with the mitigations chosen.

mod costs;
mod devices;
mod number;
mod spec;

use std::path::Path;

use crate::mmu::{Array, GeometryError, NEAR_LINES, TYPICAL_LINES, TlbGeometry, UpperLevels};
pub use costs::{BroadcastCosts, Costs, HypervisorCosts, Topology};
pub use devices::{DeviceCosts, IommuCosts, IommuSpec, NicCosts, NicSpec, NvmeCosts, NvmeSpec};
pub use number::{Number, Origin, Pair};
use shootdown::ids::Stride;
pub use spec::*;

use crate::names::nearest;

/// Why there is no such profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// No built-in profile has this name.
    #[error("there is no machine `{name}`; did you mean {}?", nearest.join(" or "))]
    Unknown {
        /// The name asked for.
        name: String,
        /// The nearest names there are.
        nearest: Vec<String>,
    },
    /// The file can't be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not a profile.
    #[error("{path}: {message}")]
    Syntax {
        /// The file, or the name of a built-in profile.
        path: String,
        /// What is wrong and where.
        message: String,
    },
    /// A figure is missing its source, or makes no sense.
    #[error("{path}: `{field}` {problem}")]
    Figure {
        /// The file, or the name of a built-in profile.
        path: String,
        /// The figure.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
}

const BUILT_IN: [(&str, &str); 10] = [
    ("haswell-ep-48", include_str!("../../../../profiles/haswell-ep-48.toml")),
    ("haswell-4s-96", include_str!("../../../../profiles/haswell-4s-96.toml")),
    ("skylake-laptop", include_str!("../../../../profiles/skylake-laptop.toml")),
    ("zen4", include_str!("../../../../profiles/zen4.toml")),
    ("zen4-vm", include_str!("../../../../profiles/zen4-vm.toml")),
    ("zen3-milan-36", include_str!("../../../../profiles/zen3-milan-36.toml")),
    ("ampere-emag-32", include_str!("../../../../profiles/ampere-emag-32.toml")),
    ("altra-80", include_str!("../../../../profiles/altra-80.toml")),
    ("riscv-64", include_str!("../../../../profiles/riscv-64.toml")),
    ("generic-4096", include_str!("../../../../profiles/generic-4096.toml")),
];

impl Profile {
    /// The names of the built-in profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// A built-in profile.
    ///
    /// ```
    /// use shootdown_machine::Profile;
    /// assert_eq!(Profile::named("zen4").unwrap().name, "zen4");
    /// let error = Profile::named("zen5").unwrap_err();
    /// assert!(error.to_string().contains("did you mean zen4"));
    /// ```
    ///
    /// # Errors
    /// [`ProfileError::Unknown`], with the nearest names.
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        match BUILT_IN.iter().find(|(n, _)| *n == name) {
            Some((name, text)) => Self::parse(name, text),
            None => Err(ProfileError::Unknown {
                name: name.to_owned(),
                nearest: nearest(name, Self::names()),
            }),
        }
    }

    /// A profile from a file.
    ///
    /// # Errors
    /// When it can't be read, is not a profile, or has a figure without a source.
    pub fn load(path: &Path) -> Result<Self, ProfileError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| ProfileError::Read { path: shown.clone(), source })?;
        Self::parse(&shown, &text)
    }

    /// A profile from its text; `path` is what errors call it.
    ///
    /// # Errors
    /// When it is not a profile, or has a figure without a source.
    pub fn parse(path: &str, text: &str) -> Result<Self, ProfileError> {
        let profile: Self = toml::from_str(text).map_err(|e| ProfileError::Syntax {
            path: path.to_owned(),
            message: e.to_string().trim_end().to_owned(),
        })?;
        let figure = |field: &str, problem: &str| ProfileError::Figure {
            path: path.to_owned(),
            field: field.to_owned(),
            problem: problem.to_owned(),
        };
        for (field, number) in profile.figures() {
            number.check().map_err(|problem| figure(&field, problem))?;
        }
        profile.check_geometry().map_err(|(field, problem)| figure(field, problem))?;
        Ok(profile)
    }

    /// The shapes of the TLBs and walk caches.
    ///
    /// # Errors
    /// When they can't be built.
    pub fn geometry(&self) -> Result<TlbGeometry, GeometryError> {
        let small = |n: &Number| u16::try_from(n.count()).unwrap_or(u16::MAX);
        let level = |arrays: &[ArraySpec]| -> Vec<Array> {
            let array = |spec: &ArraySpec| {
                let size = |page: &String| match page.as_str() {
                    "2m" => Stride::Page2M,
                    "1g" => Stride::Page1G,
                    _ => Stride::Page4K,
                };
                let sizes: Vec<_> = spec.pages.iter().map(size).collect();
                Array::new(small(&spec.entries), small(&spec.ways), &sizes)
            };
            arrays.iter().map(array).collect()
        };
        let caches = &self.walk_cache;
        let geometry = TlbGeometry {
            l1: level(&self.tlb.l1),
            l2: level(&self.tlb.l2),
            walk_cache: [small(&caches.top), small(&caches.upper), small(&caches.lower)],
            upper_levels: self.upper_levels(),
            near_lines: NEAR_LINES,
            typical_lines: TYPICAL_LINES,
        };
        geometry.check()?;
        Ok(geometry)
    }

    /// What a single-page invalidation does to the walk caches: where tags are system-wide, that of
    /// Arm and RISC-V; else that of x86.
    fn upper_levels(&self) -> UpperLevels {
        if self.has_system_tags() { UpperLevels::PathUnlessLeafOnly } else { UpperLevels::AllOfTag }
    }

    /// A tag means the same space on every CPU.
    #[must_use]
    pub fn has_system_tags(&self) -> bool {
        self.facts.system_tags.as_ref().is_some_and(|n| n.count() != 0)
    }

    /// Every figure with its name, in the order of the file: for checks and for tables of sources.
    #[must_use]
    pub fn figures(&self) -> Vec<(String, &Number)> {
        let mut all = Vec::new();
        macro_rules! push {
            ($prefix:literal, $from:expr, $($field:ident),+) => {
                $(all.push((concat!($prefix, stringify!($field)).to_owned(), &$from.$field));)+
            };
        }
        push!("", self, ghz);
        push!(
            "topology.",
            self.topology,
            cpus,
            sockets,
            smt,
            cache_cpus,
            group_sockets,
            ipi_cluster
        );
        push!("line.", self.line, hit, smt, cache, same, cross, far, atomic, fence, fill_buffers);
        push!("ipi.", self.ipi, send, same, cross, far);
        push!("entry.syscall.", self.entry.syscall, plain, mitigated);
        push!("entry.fault.", self.entry.fault, plain, mitigated);
        push!("entry.irq_entry.", self.entry.irq_entry, plain, mitigated);
        push!("entry.irq_exit.", self.entry.irq_exit, plain, mitigated);
        push!("kernel.", self.kernel, kick_handler, switch, area, entry_edit, wake);
        push!(
            "invalidate.",
            self.invalidate,
            page,
            page_other_tag,
            tag,
            everything,
            load_keep,
            load_flush
        );
        let mut optional = |name: &str, number| {
            if let Some(number) = number {
                all.push((name.to_owned(), number));
            }
        };
        optional("invalidate.sync", self.invalidate.sync.as_ref());
        optional("tlb.shared_by", self.tlb.shared_by.as_ref());
        optional("facts.system_tags", self.facts.system_tags.as_ref());
        optional("facts.repeat_sync", self.facts.repeat_sync.as_ref());
        optional("facts.survives_once", self.facts.survives_once.as_ref());
        optional("line.own", self.line.own.as_ref());
        all.extend(self.device_figures());
        if let Some(b) = &self.broadcast {
            push!("broadcast.", b, issue, latency, service, tax, strides, ranges);
        }
        if let Some(h) = &self.hypervisor {
            push!("hypervisor.", h, slice, exit, entry, hypercall, target);
        }
        push!("access.", self.access, dependent, independent);
        for (level, arrays) in [("l1", &self.tlb.l1), ("l2", &self.tlb.l2)] {
            for (i, array) in arrays.iter().enumerate() {
                all.push((format!("tlb.{level}[{i}].entries"), &array.entries));
                all.push((format!("tlb.{level}[{i}].ways"), &array.ways));
            }
        }
        push!("walk_cache.", self.walk_cache, top, upper, lower);
        push!("walk.", self.walk, l2_hit, l2_hit_overlapped, near, typical, far, overlapped);
        push!(
            "facts.",
            self.facts,
            tag_bits,
            other_tag,
            split_when_mitigated,
            kick_all,
            ceiling,
            hypervisor
        );
        all
    }

    fn check_geometry(&self) -> Result<(), (&'static str, &'static str)> {
        if self.tlb.shared_by.as_ref().is_some_and(|n| n.count() == 0) {
            return Err(("tlb.shared_by", "must be at least 1"));
        }
        if self.ghz.plain() <= 0.0 {
            return Err(("ghz", "must be above 0"));
        }
        let t = &self.topology;
        for (field, number) in [
            ("topology.cpus", &t.cpus),
            ("topology.sockets", &t.sockets),
            ("topology.smt", &t.smt),
            ("topology.cache_cpus", &t.cache_cpus),
            ("topology.group_sockets", &t.group_sockets),
            ("topology.ipi_cluster", &t.ipi_cluster),
            ("line.fill_buffers", &self.line.fill_buffers),
            ("facts.ceiling", &self.facts.ceiling),
        ] {
            if number.count() == 0 {
                return Err((field, "must be at least 1"));
            }
        }
        if let Some(b) = &self.broadcast {
            check_broadcast(b)?;
        }
        self.check_devices()?;
        if t.cpus.count() > crate::MAX_CPUS {
            return Err(("topology.cpus", "is above 4096"));
        }
        let (sockets, threads) = (u64::from(t.sockets.count()), u64::from(t.smt.count()));
        if !u64::from(t.cpus.count()).is_multiple_of(sockets * threads) {
            return Err(("topology.cpus", "is not a multiple of sockets times threads per core"));
        }
        if self.stated_topology(t.cpus.count()).caches() > costs::MAX_CACHES {
            return Err(("topology.cache_cpus", "gives more than 64 last-level caches"));
        }
        if self.geometry().is_err() {
            return Err(("tlb", "has an array that can't be built; see TlbGeometry"));
        }
        for array in self.tlb.l1.iter().chain(&self.tlb.l2) {
            let (entries, ways) = (array.entries.count(), array.ways.count());
            if ways == 0 || entries % ways != 0 {
                return Err(("tlb", "has an array whose entries are not a multiple of its ways"));
            }
            if array.pages.is_empty()
                || !array.pages.iter().all(|p| ["4k", "2m", "1g"].contains(&p.as_str()))
            {
                return Err(("tlb", "has an array whose pages are not among 4k, 2m, 1g"));
            }
        }
        Ok(())
    }
}

fn check_broadcast(b: &BroadcastSpec) -> Result<(), (&'static str, &'static str)> {
    if !["tlbi", "invlpgb"].contains(&b.kind.as_str()) {
        return Err(("broadcast.kind", "is neither tlbi nor invlpgb"));
    }
    if b.strides.count() == 0 {
        return Err(("broadcast.strides", "must be at least 1"));
    }
    if b.tax.plain() >= 1.0 {
        return Err(("broadcast.tax", "must be below 1"));
    }
    if b.kind == "invlpgb" && b.ranges.count() != 0 {
        return Err(("broadcast.ranges", "goes with tlbi only"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_profile_states_a_whole_machine_with_sources() {
        for name in Profile::names() {
            let profile = Profile::named(name).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(profile.name, name);
            assert!(profile.figures().len() > 50);
        }
    }

    #[test]
    fn a_figure_without_source_is_refused_by_name() {
        let text = BUILT_IN[0].1.replacen("source = ", "assumed = \"x\", source = ", 1);
        let error = Profile::parse("p.toml", &text).unwrap_err().to_string();
        assert!(
            error.starts_with("p.toml: `") && error.contains("both `source` and `assumed`"),
            "{error}"
        );
    }

    #[test]
    fn counts_whose_product_does_not_fit_are_refused() {
        let figure = |text: &str, name: &str, value: &str| {
            let at = text.find(&format!("\n{name} = ")).expect("every profile has it") + 1;
            let end = at + text[at..].find('\n').expect("a line");
            format!(
                "{}{name} = {{ value = {value}, assumed = \"x\" }}{}",
                &text[..at],
                &text[end..]
            )
        };
        let text = figure(&figure(BUILT_IN[0].1, "sockets", "65536"), "smt", "65536");
        let error = Profile::parse("p.toml", &text).unwrap_err().to_string();
        assert!(error.contains("sockets times threads"), "{error}");
    }

    #[test]
    fn an_impossible_fabric_is_refused_by_name() {
        let emag = include_str!("../../../../profiles/ampere-emag-32.toml");
        for (from, to, field) in [
            ("kind = \"tlbi\"", "kind = \"ipi\"", "broadcast.kind"),
            ("strides = { value = 1,", "strides = { value = 0,", "broadcast.strides"),
            ("tax = { value = 0.2,", "tax = { value = 1,", "broadcast.tax"),
        ] {
            let text = emag.replacen(from, to, 1);
            assert_ne!(text, emag, "{from}");
            let error = Profile::parse("p.toml", &text).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }

    #[test]
    fn an_unknown_field_is_refused_with_its_place() {
        let text = format!("colour = 3\n{}", BUILT_IN[1].1);
        let error = Profile::parse("p.toml", &text).unwrap_err().to_string();
        assert!(error.contains("line 1"), "{error}");
    }
}
