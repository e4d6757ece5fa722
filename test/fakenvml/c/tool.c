// SPDX-License-Identifier: Apache-2.0

// fakenvml: makes and changes the state that the fake library answers from.
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tool.h"

static const char usage[] =
	"usage: fakenvml COMMAND (state: $FAKENVML_STATE or /run/fakenvml.state)\n"
	"  new --gpus MODEL[:N],… [--driver 580.95.05] [--cuda 13.0]   a machine; the old state is gone\n"
	"  driver [--version V] [--cuda V] [--init CODE]               what nvmlInit answers: SUCCESS, LIB_RM_VERSION_MISMATCH, …\n"
	"  reboot                                                      Hopper and later lose mode and instances, Ampere instances\n"
	"  client add|rm --pid P [--gpu N] [--gi N [--ci N]] [--type compute|graphics|mps|unlisted]\n"
	"  fail --code CODE [--call NAME] [--gpu N] [--nth N] [--late]  the nth such call (0: each; no NAME: any change); --late: done, and yet an error\n"
	"  kill [--call NAME] [--gpu N] [--nth N] [--late]             the caller is killed before, or --late after it\n"
	"  heal                                                        no more fail and kill\n"
	"  latency --ms N [--mutations-only]\n"
	"  attach --ms N                                               what the first handle of a session takes for a GPU that no process holds\n"
	"  set [--gpu N] NAME=VALUE…                                   names: see dump, settings\n"
	"  lost|reset-refused --gpu N [--off]\n"
	"  fabric [--gpu N] --state completed|in-progress|not-started [--status N] [--clique N]\n"
	"  ecc|remap [--gpu N] NAME=VALUE…                             set, with ecc_ or remap_ before the names\n"
	"  xid --gpu N --code N [--gi N]\n"
	"  forget                                                      counters and log back to nothing\n"
	"  dump                                                        JSON\n"
	"  models\n";

void stop(const char *format, ...) {
	va_list args;
	va_start(args, format);
	fprintf(stderr, "fakenvml: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	exit(1);
}

static int argn;
static char **args;

// option: the value of --name, or NULL.
static const char *option(const char *name) {
	for (int i = 0; i + 1 < argn; i++)
		if (strncmp(args[i], "--", 2) == 0 && strcmp(args[i] + 2, name) == 0) return args[i + 1];
	return NULL;
}

static int flag(const char *name) {
	for (int i = 0; i < argn; i++)
		if (strncmp(args[i], "--", 2) == 0 && strcmp(args[i] + 2, name) == 0) return 1;
	return 0;
}

static u64 number(const char *name, u64 otherwise) {
	const char *text = option(name);
	char *rest;
	if (!text) return otherwise;
	u64 value = strtoull(text, &rest, 0);
	if (*rest || !*text) stop("--%s %s is not a number", name, text);
	return value;
}

static u32 gpu_option(struct state *s, u32 otherwise) {
	u32 gpu = (u32)number("gpu", otherwise);
	if (gpu != NOWHERE && gpu >= s->gpus) stop("there is no GPU %u", gpu);
	return gpu;
}

static void put(struct state *s, u32 gpu, const char *name, u64 value) {
	for (u32 i = 0; i < s->gpus; i++)
		if ((gpu == NOWHERE || gpu == i) && setting_put(&s->gpu[i].set, name, value) != 0) stop("no setting %s", name);
}

static void settings(struct state *s, const char *prefix) {
	u32 gpu = gpu_option(s, NOWHERE);
	for (int i = 0; i < argn; i++) {
		char name[64], *is = strchr(args[i], '='), *rest;
		if (strncmp(args[i], "--", 2) == 0) {
			i++; // and its value
			continue;
		}
		if (!is) stop("%s is not NAME=VALUE", args[i]);
		u64 value = strtoull(is + 1, &rest, 0);
		if (*rest || !is[1]) stop("%s is not NAME=NUMBER", args[i]);
		snprintf(name, sizeof name, "%s%.*s", prefix, (int)(is - args[i]), args[i]);
		put(s, gpu, name, value);
	}
}

static void client(struct state *s) {
	if (argn < 1) stop("client add or client rm?");
	u32 pid = (u32)number("pid", 0), gpu = gpu_option(s, NOWHERE), gi = (u32)number("gi", NOWHERE);
	u32 ci = (u32)number("ci", gi == NOWHERE ? NOWHERE : 0), type = 0;
	if (!pid) stop("--pid is missing");
	const char *kind = option("type");
	if (kind) type = strcmp(kind, "graphics") == 0 ? 1 : strcmp(kind, "mps") == 0 ? 2 : strcmp(kind, "unlisted") == 0 ? 3 : 0;
	if (strcmp(args[0], "rm") == 0) {
		for (int i = 0; i < MAX_CLIENTS; i++)
			if (s->client[i].pid == pid && (gpu == NOWHERE || s->client[i].gpu == gpu) && (gi == NOWHERE || s->client[i].gi == gi)) s->client[i].pid = 0;
		return;
	}
	if (gpu == NOWHERE) gpu = gpu_option(s, 0);
	struct gpu *g = &s->gpu[gpu];
	if (gi != NOWHERE && (!gi_at(g, gi) || !ci_at(gi_at(g, gi), ci))) stop("GPU %u has no compute instance %u in a GPU instance %u", gpu, ci, gi);
	for (int i = 0; i < MAX_CLIENTS; i++) {
		if (s->client[i].pid) continue;
		s->client[i] = (struct client){gpu, gi, ci, pid, type};
		return;
	}
	stop("more than %d clients", MAX_CLIENTS);
}

static void rule(struct state *s, u32 kind) {
	const char *call = option("call"), *code = option("code");
	struct rule r = {.kind = kind, .call = CALLS, .gpu = gpu_option(s, NOWHERE), .nth = (u32)number("nth", 1)};
	if (call) {
		if (call_by_name(call) < 0) stop("no call %s", call);
		r.call = (u32)call_by_name(call);
	}
	if (kind == RULE_FAIL) {
		if (!code || code_by_name(code) < 0) stop("--code %s: no such code", code ? code : "");
		r.code = (u32)code_by_name(code);
	}
	r.kind += (u32)flag("late"); // RULE_FAIL_LATE follows RULE_FAIL, RULE_KILL_LATE RULE_KILL
	for (int i = 0; i < MAX_RULES; i++) {
		if (s->rule[i].kind != RULE_FREE) continue;
		s->rule[i] = r;
		return;
	}
	stop("more than %d rules", MAX_RULES);
}

static void fabric(struct state *s) {
	const char *const states[] = {"not-supported", "not-started", "in-progress", "completed"}, *state = option("state");
	u32 gpu = gpu_option(s, NOWHERE);
	for (u32 i = 0; state && i < 4; i++)
		if (strcmp(states[i], state) == 0) {
			put(s, gpu, "fabric_state", i);
			state = NULL;
		}
	if (state) stop("--state %s is not one", state);
	if (option("status")) put(s, gpu, "fabric_status", number("status", 0));
	if (option("clique")) put(s, gpu, "clique", number("clique", 0));
}

static void driver(struct state *s) {
	const char *init = option("init");
	if (init && code_by_name(init) < 0) stop("no code %s", init);
	if (init) s->init_code = (u32)code_by_name(init);
	set_driver(s, option("version"), option("cuda"));
}

static void xid(struct state *s) {
	u32 gpu = gpu_option(s, 0);
	s->gpu[gpu].set.xid_count++;
	raise_event(s, gpu, 8, number("code", 79), (u32)number("gi", NOWHERE)); // nvmlEventTypeXidCriticalError
}

static void forget(struct state *s) {
	memset(s->counts, 0, sizeof s->counts);
	s->mutations = s->logged = s->attaches = 0;
}

static void command(struct state *s, const char *what) {
	if (strcmp(what, "driver") == 0) driver(s);
	else if (strcmp(what, "reboot") == 0) reboot(s);
	else if (strcmp(what, "client") == 0) client(s);
	else if (strcmp(what, "fail") == 0) rule(s, RULE_FAIL);
	else if (strcmp(what, "kill") == 0) rule(s, RULE_KILL);
	else if (strcmp(what, "heal") == 0) memset(s->rule, 0, sizeof s->rule);
	else if (strcmp(what, "latency") == 0) s->latency_ms = (u32)number("ms", 0), s->latency_all = !flag("mutations-only");
	else if (strcmp(what, "attach") == 0) s->attach_ms = (u32)number("ms", 0);
	else if (strcmp(what, "set") == 0) settings(s, "");
	else if (strcmp(what, "ecc") == 0) settings(s, "ecc_");
	else if (strcmp(what, "remap") == 0) settings(s, "remap_");
	else if (strcmp(what, "lost") == 0) put(s, gpu_option(s, NOWHERE), "lost", !flag("off"));
	else if (strcmp(what, "reset-refused") == 0) put(s, gpu_option(s, NOWHERE), "reset_refused", !flag("off"));
	else if (strcmp(what, "fabric") == 0) fabric(s);
	else if (strcmp(what, "xid") == 0) xid(s);
	else if (strcmp(what, "forget") == 0) forget(s);
	else if (strcmp(what, "dump") == 0) dump(s);
	else stop("no command %s", what);
}

int main(int argc, char **argv) {
	if (argc < 2) {
		fputs(usage, stderr);
		return 1;
	}
	argn = argc - 2;
	args = argv + 2;
	if (strcmp(argv[1], "models") == 0) {
		for (u32 i = 0; i < MODEL_COUNT; i++) puts(MODELS[i].key);
		return 0;
	}
	if (strcmp(argv[1], "new") == 0) {
		if (!option("gpus")) stop("--gpus is missing");
		if (state_create(state_path(), make_state(option("gpus"), option("driver"), option("cuda"))) != 0) stop("cannot write %s: %s", state_path(), strerror(errno));
		return 0;
	}
	struct state *s = state_open(state_path());
	if (!s) stop("cannot open %s: %s", state_path(), strerror(errno));
	state_lock();
	command(s, argv[1]);
	state_unlock();
	return 0;
}
