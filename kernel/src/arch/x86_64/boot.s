# From the loader to `start`: 32-bit protected mode, paging off, to 64-bit mode on identity tables.
#
# The first 4 GiB are mapped to themselves by 2 MiB pages, writable, executable and global. They are the kernel's
# mappings in every root; spaces begin at the second entry of the top-level table.

# ---- PVH: the ELF note by which QEMU's -kernel finds the entry (Xen's `XEN_ELFNOTE_PHYS32_ENTRY`, 18).
.section .note.Xen, "a", @note
.balign 4
    .long 4                     # name, with its zero
    .long 8                     # description: QEMU reads eight bytes
    .long 18
    .asciz "Xen"
    .quad entry32

# ---- Multiboot2: GRUB, for Bochs and real machines (specification 2.0, section 3.1).
.section .multiboot2, "a"
.balign 8
mb2_header:
    .long 0xe85250d6            # magic
    .long 0                     # i386 protected mode
    .long mb2_header_end - mb2_header
    .long -(0xe85250d6 + (mb2_header_end - mb2_header))
    .short 0, 0                 # end tag
    .long 8
mb2_header_end:

# ---- Tables
.section .data.boot, "aw"
.balign 4096
.global boot_root
boot_root:
    .quad boot_pdpt + 0x3
    .fill 511, 8, 0
boot_pdpt:
    .set gib, 0
    .rept 4
    .quad boot_directories + gib * 4096 + 0x3
    .set gib, gib + 1
    .endr
    .fill 508, 8, 0
boot_directories:
    .set page, 0
    .rept 4 * 512
    .quad page * 0x200000 + 0x183   # present, writable, large, global
    .set page, page + 1
    .endr

.balign 16
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff    # 0x08: code, 64 bits
    .quad 0x00cf93000000ffff    # 0x10: data
    .quad 0x00cf9b000000ffff    # 0x18: code, 32 bits
boot_gdt_end:
boot_gdtr:
    .short boot_gdt_end - boot_gdt - 1
    .quad boot_gdt

# ---- The boot CPU
.section .boot32, "ax"
.code32
.global entry32
entry32:
    cli
    cld
    mov edi, eax                # the loader's magic number
    mov esi, ebx                # its information
    lgdt [boot_gdtr]
    .byte 0xea                  # jmp 0x18:1f
    .long 1f
    .short 0x18
1:
    mov ax, 0x10
    mov ds, ax
    mov es, ax
    mov ss, ax
    lea esp, [boot_stack_end]
    lea ebx, [first64]

# To 64-bit mode, at ebx; edi and esi are kept.
to_long_mode:
    mov eax, cr4
    or eax, 0xa0                # PAE, PGE
    mov cr4, eax
    lea eax, [boot_root]
    mov cr3, eax
    mov ecx, 0xc0000080         # EFER
    rdmsr
    or eax, 0x900               # LME, NXE
    wrmsr
    mov eax, cr0
    and eax, 0x9fffffff         # caches on
    or eax, 0x80010021          # PG, WP, NE, PE
    mov cr0, eax
    push 0x08
    push ebx
    .byte 0xcb                  # far return

# ---- The other CPUs begin here, in real mode, at the page that `TRAMPOLINE` names
.code16
.global trampoline, trampoline_end
trampoline:
    .byte 0xeb, 0x0e            # over the descriptor
    .fill 6, 1, 0x90
    .short boot_gdt_end - boot_gdt - 1  # at 8: an address that the assembler need not compute
    .long boot_gdt
    .short 0
    cli
    xor ax, ax
    mov ds, ax
    lgdt [0x8008]
    mov eax, cr0
    or al, 1
    mov cr0, eax
    .byte 0x66, 0xea            # jmp 0x18:next32
    .long 0x8000 + next32 - trampoline
    .short 0x18
.code32
next32:
    mov ax, 0x10
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov esp, 0x7ff0             # for one push: CPUs are started one after the other
    lea ebx, [next64]
    lea eax, [to_long_mode]
    jmp eax
trampoline_end:

.code64
first64:
    xor eax, eax
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov fs, ax
    mov gs, ax
    lea rsp, [boot_stack_end]
    xor ebp, ebp
    call {start}
    ud2
next64:
    xor eax, eax
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov fs, ax
    mov gs, ax
    mov rsp, [{next_stack}]
    xor ebp, ebp
    call {start_other}
    ud2

.section .bss.boot_stack, "aw", @nobits
.balign 16
    .skip 65536
boot_stack_end:
.text
