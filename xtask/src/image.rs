//! The image and its ISO.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;
use crate::cli::{Arch, Loader};
use crate::process::{need, succeed};

/// The root of the repository.
pub fn root() -> PathBuf {
    // This package is one folder below it.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder above xtask/").to_path_buf()
}

/// How Rust's library for bare metal is had.
pub enum Library {
    /// Installed, or just downloaded.
    Prebuilt,
    /// To be built from its source.
    FromSource,
}

/// Sees to it that the target can be built for.
pub fn library(target: &str) -> Result<Library, Error> {
    let printed =
        Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    let folder = printed.ok().map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    if folder.is_some_and(|folder| Path::new(&folder).is_dir()) {
        return Ok(Library::Prebuilt);
    }
    let rustup = |arguments: &[&str]| {
        complain!("rustup {}", arguments.join(" "));
        Command::new("rustup").args(arguments).status().is_ok_and(|status| status.success())
    };
    if rustup(&["target", "add", target]) {
        return Ok(Library::Prebuilt);
    }
    if rustup(&["component", "add", "rust-src"]) {
        complain!("no prebuilt core for {target}: building it from its source");
        return Ok(Library::FromSource);
    }
    Err(Error::Unusable(format!(
        "Rust's library for {target} is missing: run 'rustup target add {target}', or 'rustup component add rust-src' to have it built here"
    )))
}

/// How the image is compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// Optimized, with the assertions of the library and the kernel.
    Checked,
    /// Optimized, without: what is measured.
    Release,
}

/// Builds the image.
pub fn build(arch: Arch, profile: Profile) -> Result<PathBuf, Error> {
    let (root, target) = (root(), arch.target());
    // From the kernel's own folder: its .cargo/config.toml names the linker scripts.
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root.join("kernel"));
    cargo.args(["build", "--quiet", "--locked", "--target", target]);
    let subfolder = match profile {
        Profile::Checked => "debug",
        Profile::Release => {
            cargo.arg("--release");
            "release"
        }
    };
    let folder = root.join("target/kernel");
    cargo.arg("--target-dir").arg(&folder);
    if let Library::FromSource = library(target)? {
        cargo.env("RUSTC_BOOTSTRAP", "1").arg("-Zbuild-std=core,alloc");
    }
    succeed("building the image", &mut cargo)?;
    Ok(folder.join(target).join(subfolder).join("shootdown-kernel"))
}

/// A bootable ISO.
pub struct Iso {
    pub file: PathBuf,
    bios: bool,
    uefi: bool,
}

impl Iso {
    /// Which computers it boots on.
    pub const fn firmware(&self) -> &'static str {
        match (self.bios, self.uefi) {
            (true, true) => "boots by BIOS and by UEFI",
            (true, false) => "boots by BIOS; for UEFI too, apt-get install grub-efi-amd64-bin",
            _ => "boots by UEFI; for BIOS too, apt-get install grub-pc-bin",
        }
    }

    /// Says what is missing if it does not boot by this firmware.
    pub fn boots_by(&self, loader: Loader) -> Result<(), Error> {
        let (boots, package) = match loader {
            Loader::Direct => return Ok(()),
            Loader::Bios => (self.bios, "grub-pc-bin"),
            Loader::Uefi => (self.uefi, "grub-efi-amd64-bin"),
        };
        if boots {
            return Ok(());
        }
        Err(Error::Missing {
            program: format!("GRUB for {loader:?}"),
            hint: format!("apt-get install {package}, or scripts/install-deps.sh metal-bochs"),
        })
    }
}

/// Makes an ISO that boots the image by GRUB, from a CD or a USB stick, on a PC with a BIOS or UEFI
/// firmware: on whichever of them GRUB's files are installed for.
pub fn iso(image: &Path, command_line: &str) -> Result<Iso, Error> {
    const PACKAGES: &str = "apt-get install grub-common grub-pc-bin grub-efi-amd64-bin xorriso mtools, or scripts/install-deps.sh metal-bochs";
    for program in ["grub-mkrescue", "xorriso", "mformat"] {
        need(program, PACKAGES)?;
    }
    let has = |platform: &str| Path::new("/usr/lib/grub").join(platform).is_dir();
    let (bios, uefi) = (has("i386-pc"), has("x86_64-efi"));
    if !bios && !uefi {
        return Err(Error::Missing {
            program: "/usr/lib/grub/i386-pc".into(),
            hint: PACKAGES.into(),
        });
    }
    let folder = root().join("target/kernel/iso");
    let grub = folder.join("tree/boot/grub");
    let failed =
        |path: PathBuf| move |source| Error::File { path: path.display().to_string(), source };
    std::fs::create_dir_all(&grub).map_err(failed(grub.clone()))?;
    let copy = folder.join("tree/boot/kernel");
    std::fs::copy(image, &copy).map_err(failed(copy.clone()))?;
    let menu = format!("set timeout=0\nmultiboot2 /boot/kernel {command_line}\nboot\n");
    let config = grub.join("grub.cfg");
    std::fs::write(&config, menu).map_err(failed(config.clone()))?;
    let file = folder.join("shootdown.iso");
    let mut make = Command::new("grub-mkrescue");
    make.args(["--compress=xz", "--fonts=", "--locales=", "--themes="]);
    make.arg("--install-modules=multiboot2 normal iso9660");
    make.arg("-o").arg(&file).arg(folder.join("tree"));
    succeed("making the ISO", &mut make)?;
    Ok(Iso { file, bios, uefi })
}
