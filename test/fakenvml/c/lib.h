// SPDX-License-Identifier: Apache-2.0

// What the library's calls have in common: handles, and how a call begins and ends.
#ifndef FAKE_LIB_H
#define FAKE_LIB_H

#include <stddef.h>
#include <string.h>

#include "state.h"

#define EXPORT __attribute__((visibility("default")))

enum kind { DEVICE = 1, MIG_DEVICE, GPU_INSTANCE, COMPUTE_INSTANCE };

// A call under way. begin fills it and holds the state's lock if it returns OK; end releases it and returns the code.
struct call {
	u32 name, number, changes;
	struct state *s;
	struct gpu *g; // what the handle led to, as far as it goes
	const struct model *m;
	struct gi *gi;
	struct ci *ci;
	int rule; // that strikes at the end, or -1
	struct mutation log;
};

enum code begin(struct call *c, u32 name, enum kind kind, handle h);
enum code begin_plain(struct call *c, u32 name); // a call without a handle
enum code begin_change(struct call *c, u32 name, enum kind kind, handle h);
enum code end(struct call *c, enum code code);

handle device_handle(u32 gpu);
handle mig_handle(u32 gpu, const struct gi *gi, const struct ci *ci);
handle gi_handle(u32 gpu, const struct gi *gi);
handle ci_handle(u32 gpu, const struct gi *gi, const struct ci *ci);
int is_mig(handle h);
void attach(struct state *s, u32 gpu);
enum code put_text(char *out, u32 length, const char *text);

// BEGIN opens a call that has a handle as its first argument.
#define BEGIN(fn, kind, h) \
	struct call c; \
	enum code began = begin(&c, CALL_##fn, kind, h); \
	if (began != OK) return began
#define BEGIN_CHANGE(fn, kind, h) \
	struct call c; \
	enum code began = begin_change(&c, CALL_##fn, kind, h); \
	if (began != OK) return began
#define BEGIN_PLAIN(fn) \
	struct call c; \
	enum code began = begin_plain(&c, CALL_##fn); \
	if (began != OK) return began
#define END(code) return end(&c, code)
#define NEED(condition) \
	if (!(condition)) END(INVALID_ARGUMENT)

#endif
