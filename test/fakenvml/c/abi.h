// SPDX-License-Identifier: Apache-2.0

// The part of NVML's ABI that the fake library speaks: layouts as in NVIDIA's nvml.h, compared with it by abi_check.c.
#ifndef FAKE_ABI_H
#define FAKE_ABI_H

enum code {
	OK = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	NO_PERMISSION = 4,
	NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7,
	DRIVER_NOT_LOADED = 9,
	TIMEOUT = 10,
	GPU_IS_LOST = 15,
	RESET_REQUIRED = 16,
	IN_USE = 19,
	INSUFFICIENT_RESOURCES = 23,
	ARGUMENT_VERSION_MISMATCH = 25,
	UNKNOWN = 999,
};

typedef unsigned int u32;
typedef unsigned long long u64;

// All of NVML's handles are structs of one pointer, which the ABI passes like the pointer.
typedef struct { u64 bits; } handle;

struct a_pci {
	char legacy[16];
	u32 domain, bus, device, id, subsystem;
	char bus_id[32];
};
struct a_memory { u64 total, free, used; };
struct a_memory2 { u32 version; u64 total, reserved, free, used; };
struct a_process { u32 pid; u64 memory; u32 gi, ci; };
struct a_attributes { u32 sms, copy, decoders, encoders, jpeg, ofa, gi_slices, ci_slices; u64 memory; };
struct a_place { u32 start, size; };
struct a_gi_info { handle device; u32 id, profile; struct a_place place; };
struct a_ci_info { handle device, gi; u32 id, profile; struct a_place place; };
struct a_gi_profile { u32 id, p2p, slices, instances, sms, copy, decoders, encoders, jpeg, ofa; u64 memory; };
struct a_gi_profile2 {
	u32 version, id, p2p, slices, instances, sms, copy, decoders, encoders, jpeg, ofa;
	u64 memory;
	char name[96];
};
struct a_gi_profile3 {
	u32 version, id, slices, instances, sms, copy, decoders, encoders, jpeg, ofa;
	u64 memory;
	char name[96];
	u32 capabilities;
};
struct a_ci_profile { u32 id, slices, instances, sms, copy, decoders, encoders, jpeg, ofa; };
struct a_ci_profile2 { u32 version; struct a_ci_profile body; char name[96]; };
struct a_ci_profile3 { u32 version; struct a_ci_profile body; char name[96]; u32 capabilities; };
struct a_histogram { u32 max, high, partial, low, none; };
struct a_remap2 { u32 corrected, corrected_idle, uncorrected, uncorrected_idle, pending, failed; };
struct a_fabric { unsigned char cluster[16]; u32 status, clique, state; };
struct a_fabric2 { u32 version; unsigned char cluster[16]; u32 status, clique, state, health; };
struct a_fabric3 { u32 version; unsigned char cluster[16]; u32 status, clique, state, health; unsigned char summary; };
struct a_sram { u32 version; u64 unc_parity, unc_secded, cor, v_unc_parity, v_unc_secded, v_cor, bucket[5]; u32 exceeded; };
struct a_expiry { u32 year; unsigned short month, day, hour, min, sec; unsigned char status; };
struct a_feature { u32 code, state; char info[128], product[128]; u32 enabled; struct a_expiry expiry; };
struct a_features { int supported; u32 count; struct a_feature of[3]; };
struct a_repair { u32 version, channel, tpc; };
struct a_field { u32 id, scope; long long at, latency; u32 type, code; u64 value; };
struct a_event { handle device; u64 type, data; u32 gi, ci; };

#define STRUCT_VERSION(type, version) ((u32)(sizeof(type) | (version) << 24))

#endif
