// SPDX-License-Identifier: Apache-2.0

// How a call begins and ends, nvmlInit and nvmlShutdown.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "lib.h"

static struct state *mapped;
static u32 inits, attached; // attached: bit n for the nth GPU, in this session
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

// A handle's bits: kind, GPU, GPU instance, compute instance and the serial number of what it names, so that a handle to
// what was destroyed does not lead to what was made in its place. No address of Go's heap looks like one.
static handle make(enum kind kind, u32 gpu, u32 gi, u32 ci, u32 serial) {
	return (handle){(u64)kind << 44 | (u64)gpu << 38 | (u64)(gi & 63) << 32 | (u64)(ci & 15) << 28 | (serial & 0xfffffff)};
}

handle device_handle(u32 gpu) { return make(DEVICE, gpu, 0, 0, 0); }
handle mig_handle(u32 gpu, const struct gi *gi, const struct ci *ci) { return make(MIG_DEVICE, gpu, gi->id, ci->id, ci->serial); }
handle gi_handle(u32 gpu, const struct gi *gi) { return make(GPU_INSTANCE, gpu, gi->id, 0, gi->serial); }
handle ci_handle(u32 gpu, const struct gi *gi, const struct ci *ci) { return make(COMPUTE_INSTANCE, gpu, gi->id, ci->id, ci->serial); }
int is_mig(handle h) { return h.bits >> 44 == MIG_DEVICE; }

static void wait_ms(u32 ms) {
	struct timespec left = {ms / 1000, (long)(ms % 1000) * 1000000};
	while (nanosleep(&left, &left) != 0 && errno == EINTR) {
	}
}

// attach: the driver initialises a GPU that no process holds for its first client, which takes 1 to 3 seconds:
// docs.nvidia.com/deploy/driver-persistence. A session holds it. Several GPUs start at a time, since R550: RmRelaxedGspInitLocking in
// nvrm_registry.h and kernel_gsp.c of github.com/NVIDIA/open-gpu-kernel-modules.
void attach(struct state *s, u32 gpu) {
	if (attached >> gpu & 1) return;
	attached |= 1u << gpu;
	if (s->gpu[gpu].set.persistence || clients(s, gpu, NOWHERE, NOWHERE)) return;
	s->attaches++;
	state_unlock();
	wait_ms(s->attach_ms);
	state_lock();
}

// lead follows a handle. kind DEVICE takes MIG devices too, as NVML's device calls do; the call itself may refuse them.
static enum code lead(struct call *c, enum kind kind, handle h) {
	enum kind got = (enum kind)(h.bits >> 44);
	u32 gpu = (u32)(h.bits >> 38) & 63, serial = (u32)h.bits & 0xfffffff;
	if (got != kind && !(kind == DEVICE && got == MIG_DEVICE)) return INVALID_ARGUMENT;
	if (gpu >= c->s->gpus) return INVALID_ARGUMENT;
	c->number = gpu;
	c->g = &c->s->gpu[gpu];
	c->m = model_of(c->g);
	c->log.gpu = gpu;
	if (c->g->set.lost) return GPU_IS_LOST;
	if (got == DEVICE) return OK;
	c->gi = gi_at(c->g, (u32)(h.bits >> 32) & 63);
	if (!c->gi) return INVALID_ARGUMENT;
	c->log.gi = c->gi->id;
	if (got == GPU_INSTANCE) return (c->gi->serial & 0xfffffff) == serial ? OK : INVALID_ARGUMENT;
	c->ci = ci_at(c->gi, (u32)(h.bits >> 28) & 15);
	if (!c->ci || (c->ci->serial & 0xfffffff) != serial) return INVALID_ARGUMENT;
	c->log.ci = c->ci->id;
	return OK;
}

// strike finds the rule that applies to this call.
static int strike(struct call *c) {
	int found = -1;
	for (int i = 0; i < MAX_RULES; i++) {
		struct rule *r = &c->s->rule[i];
		if (r->kind == RULE_FREE || (r->gpu != NOWHERE && r->gpu != c->number)) continue;
		if (r->call == CALLS ? !c->changes : r->call != c->name) continue;
		r->seen++;
		if (found < 0 && (r->nth == 0 || r->seen == r->nth)) found = i;
	}
	return found;
}

static void die(void) {
	kill(getpid(), SIGKILL);
	for (;;) pause();
}

static enum code start(struct call *c, u32 name, enum kind kind, handle h, u32 changes) {
	*c = (struct call){.name = name, .number = NOWHERE, .changes = changes, .s = mapped, .rule = -1};
	c->log = (struct mutation){.pid = (u32)getpid(), .call = name, .gpu = NOWHERE, .gi = NOWHERE, .ci = NOWHERE, .profile = NOWHERE};
	if (!mapped || !inits) return UNINITIALIZED;
	if (changes) {
		change_lock(); // the driver serialises changes over all GPUs
		wait_ms(c->s->latency_ms);
	} else if (c->s->latency_all) {
		wait_ms(c->s->latency_ms);
	}
	state_lock();
	c->s->counts[name]++;
	c->s->mutations += changes;
	enum code code = kind ? lead(c, kind, h) : OK;
	if (code == OK && changes && getenv("FAKENVML_READONLY") && strcmp(getenv("FAKENVML_READONLY"), "1") == 0) code = NO_PERMISSION;
	int rule = strike(c);
	if (rule >= 0) {
		const struct rule *r = &c->s->rule[rule];
		if (r->kind == RULE_KILL) die();
		if (r->kind == RULE_FAIL && code == OK) code = (enum code)r->code;
		c->rule = rule;
	}
	return code == OK ? OK : end(c, code);
}

enum code begin(struct call *c, u32 name, enum kind kind, handle h) { return start(c, name, kind, h, 0); }
enum code begin_change(struct call *c, u32 name, enum kind kind, handle h) { return start(c, name, kind, h, 1); }
enum code begin_plain(struct call *c, u32 name) { return start(c, name, 0, (handle){0}, 0); }

enum code end(struct call *c, enum code code) {
	if (c->rule >= 0) {
		const struct rule *r = &c->s->rule[c->rule];
		if (r->kind == RULE_KILL_LATE) die();
		if (r->kind == RULE_FAIL_LATE && code == OK) code = (enum code)r->code;
	}
	if (c->changes) {
		c->log.code = code;
		c->s->log[c->s->logged % MAX_LOG] = c->log;
		c->s->logged++;
	}
	state_unlock();
	if (c->changes) change_unlock();
	return code;
}

enum code put_text(char *out, u32 length, const char *text) {
	if (!out) return INVALID_ARGUMENT;
	if (strlen(text) >= length) return INSUFFICIENT_SIZE;
	strcpy(out, text);
	return OK;
}

static enum code init(u32 name) {
	pthread_mutex_lock(&starting);
	enum code code = OK;
	if (inits == 0) {
		struct state *s = state_open(state_path());
		if (!s)
			code = DRIVER_NOT_LOADED;
		else if (s->init_code)
			code = (enum code)s->init_code;
		if (s && code == OK) mapped = s; // an older mapping stays: another thread may be in it
	}
	if (code == OK) {
		inits++;
		state_lock();
		mapped->counts[name]++;
		state_unlock();
	}
	pthread_mutex_unlock(&starting);
	return code;
}

EXPORT enum code nvmlInit(void) { return init(CALL_nvmlInit); }
EXPORT enum code nvmlInit_v2(void) { return init(CALL_nvmlInit_v2); }
EXPORT enum code nvmlInitWithFlags(u32 flags) {
	(void)flags;
	return init(CALL_nvmlInitWithFlags);
}

EXPORT enum code nvmlShutdown(void) {
	pthread_mutex_lock(&starting);
	enum code code = inits ? OK : UNINITIALIZED;
	if (inits && --inits == 0) attached = 0;
	pthread_mutex_unlock(&starting);
	return code;
}

EXPORT const char *nvmlErrorString(u32 code) { return code_words(code); }

EXPORT enum code nvmlSystemGetDriverVersion(char *version, u32 length) {
	BEGIN_PLAIN(nvmlSystemGetDriverVersion);
	END(put_text(version, length, c.s->driver));
}

// The library's own version is known without the driver.
EXPORT enum code nvmlSystemGetNVMLVersion(char *version, u32 length) {
	struct state *s = mapped;
	if (!s) s = state_open(state_path());
	return put_text(version, length, s ? s->nvml : "13.580.95.05");
}

EXPORT enum code nvmlSystemGetCudaDriverVersion(int *version) {
	BEGIN_PLAIN(nvmlSystemGetCudaDriverVersion);
	NEED(version);
	*version = (int)c.s->cuda;
	END(OK);
}

EXPORT enum code nvmlSystemGetCudaDriverVersion_v2(int *version) {
	BEGIN_PLAIN(nvmlSystemGetCudaDriverVersion_v2);
	NEED(version);
	*version = (int)c.s->cuda;
	END(OK);
}
