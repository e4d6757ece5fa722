// SPDX-License-Identifier: Apache-2.0

// The fake driver's state: one file of this layout, mapped by every process that uses it.
#ifndef FAKE_STATE_H
#define FAKE_STATE_H

#include "abi.h"
#include "calls.h"

enum {
	MAX_GPUS = 16,
	MAX_GIS = 8,
	MAX_CIS = 8,
	MAX_CLIENTS = 128,
	MAX_RULES = 16,
	MAX_EVENTS = 64,
	MAX_LOG = 1024,
	NOWHERE = 0xffffffffu, // NVML's "no instance"
};

#define STATE_MAGIC 0x6c6d766e656b6166ull
#define STATE_VERSION 2

// Models, generated from models.txt.
struct gi_model {
	u32 id, kind, slices, max, said, sms, memory, media, copy, decoders, encoders, jpeg, ofa, gfx;
	const char *name;
	u32 size, places, start[8]; // the driver's own choice first
};
struct ci_model {
	u32 id, slices, offered; // offered: bit n for the model's nth GPU instance profile
	u32 places, start[8];
};
struct model {
	const char *key, *name, *vbios;
	u32 pci, subsystem, class, arch, major, minor, brand, sms, memory, reserved, links, link_version;
	u32 ecc, remap, fabric;
	u32 compute_slices, memory_slices, needs_reset;
	u32 gis, cis;
	struct gi_model gi[12];
	struct ci_model ci[8];
};
extern const struct model MODELS[];
extern const u32 MODEL_COUNT;

struct ci { u32 used, serial, id, profile, start, size; };                        // profile: index in the model
struct gi { u32 used, serial, id, profile, start, size; struct ci ci[MAX_CIS]; }; // the same
struct client { u32 gpu, gi, ci, pid, type; };                                     // type: 0 compute, 1 graphics, 2 MPS, 3 one that NVML does not list; pid 0: free

// What can be set from outside, by name (settings.c).
struct settings {
	u32 lost, lost_late, reset_refused, reset_void, self_reset, persistence, compute_mode;
	u32 ecc, ecc_pending, remap_corrected, remap_uncorrected, remap_pending, remap_failed, retired_pending;
	u32 fabric_state, fabric_status, clique, links_down, repair_channel, repair_tpc, xid_count, clock_reasons, recovery;
	u32 licence; // of a guest of vGPU: 1 none, 2 granted, 3 expired; 0 is bare metal
	u64 ecc_corrected, ecc_uncorrected, ecc_corrected_ever, ecc_uncorrected_ever, link_errors;
};

struct gpu {
	u32 model, bus, mode, pending;
	char uuid[48], serial[24];
	struct settings set;
	struct gi gi[MAX_GIS];
};

enum { RULE_FREE, RULE_FAIL, RULE_FAIL_LATE, RULE_KILL, RULE_KILL_LATE };
struct rule { u32 kind, call, gpu, nth, seen, code; }; // call CALLS: any that changes something; nth 0: each time

struct event { u64 number, type, data; u32 gpu, gi, ci; };

struct mutation { u32 pid, call, gpu, gi, ci, profile, start, size, code; };

struct state {
	u64 magic;
	u32 version, size;
	u32 init_code, boots, latency_ms, latency_all, attach_ms, attaches, serial, gpus;
	u32 cuda;
	char driver[32], nvml[32];
	unsigned char cluster[16];
	u64 mutations, events, logged;
	u64 counts[CALLS];
	struct gpu gpu[MAX_GPUS];
	struct client client[MAX_CLIENTS];
	struct rule rule[MAX_RULES];
	struct event event[MAX_EVENTS];
	struct mutation log[MAX_LOG];
};

// state.c
struct state *state_open(const char *path);                    // NULL: errno says why
int state_create(const char *path, const struct state *fresh); // replaces what is there; 0, or -1 and errno
const char *state_path(void);
void state_lock(void);   // a moment: for a consistent look
void state_unlock(void);
void change_lock(void);  // one change at a time on the node, however long it takes
void change_unlock(void);

// mig.c: what the driver does, for the library, the tool and nvidia-smi; the caller holds the state's lock.
const struct model *model_of(const struct gpu *g);
int find_model(const char *key);
int gi_profile_by_id(const struct model *m, u32 id);   // index, or -1
int gi_profile_by_kind(const struct model *m, u32 kind);
int ci_profile_by_id(const struct model *m, u32 gi_profile, u32 id);
u32 gi_id(const struct model *m, u32 start, u32 size);
struct gi *gi_at(struct gpu *g, u32 id);
struct ci *ci_at(struct gi *gi, u32 id);
u32 gi_capacity(struct gpu *g, u32 profile);
u32 ci_capacity(struct gpu *g, struct gi *gi, u32 profile);
u32 ci_places(const struct model *m, const struct gi *gi, u32 profile, u32 out[8]);
u32 ci_max(const struct model *m, const struct gi *gi, u32 profile);
enum code gi_create(struct state *s, struct gpu *g, u32 profile, const struct a_place *at, struct gi **made);
enum code gi_destroy(struct state *s, struct gpu *g, struct gi *gi);
enum code ci_create(struct state *s, struct gpu *g, struct gi *gi, u32 profile, const struct a_place *at, struct ci **made);
enum code ci_destroy(struct state *s, struct gpu *g, struct gi *gi, struct ci *ci);
u32 clients(const struct state *s, u32 gpu, u32 gi, u32 ci); // NOWHERE: any
enum code mode_set(struct state *s, struct gpu *g, u32 mode, u32 *activation);
enum code gpu_resettable(const struct state *s, const struct gpu *g);
void gpu_reset(struct gpu *g);
void reboot(struct state *s);
void raise_event(struct state *s, u32 gpu, u64 type, u64 data, u32 gi);
void mig_uuid(const struct gpu *g, u32 gi, u32 ci, char out[48]);
void profile_name(const struct model *m, const struct gi *gi, const struct ci *ci, char out[96]);

// words.c
const char *code_name(u32 code);                // IN_USE
int code_by_name(const char *name);             // -1: none; NVML_ERROR_ may lead
const char *code_words(u32 code);               // In use by another client
const char *call_name(u32 call);
int call_by_name(const char *name);             // -1: none
u64 setting(const struct settings *set, u32 n, const char **name); // name NULL: no nth
int setting_put(struct settings *set, const char *name, u64 value);

#endif
