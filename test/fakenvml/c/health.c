// SPDX-License-Identifier: Apache-2.0

// ECC, remapped rows, NVLink, fabric, field values, events.
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "lib.h"

EXPORT enum code nvmlDeviceGetEccMode(handle device, u32 *now, u32 *pending) {
	BEGIN(nvmlDeviceGetEccMode, DEVICE, device);
	NEED(now && pending);
	if (!c.m->ecc) END(NOT_SUPPORTED);
	*now = c.g->set.ecc;
	*pending = c.g->set.ecc_pending;
	END(OK);
}

// errors: kind 0 corrected, 1 uncorrected; counter 0 since the driver was loaded, 1 ever.
static enum code errors(const struct call *c, u32 kind, u32 counter, u64 *out) {
	const struct settings *set = &c->g->set;
	if (!out || kind > 1 || counter > 1) return INVALID_ARGUMENT;
	if (!c->m->ecc || !set->ecc) return NOT_SUPPORTED;
	const u64 counts[2][2] = {{set->ecc_corrected, set->ecc_corrected_ever}, {set->ecc_uncorrected, set->ecc_uncorrected_ever}};
	*out = counts[kind][counter];
	return OK;
}

EXPORT enum code nvmlDeviceGetTotalEccErrors(handle device, u32 kind, u32 counter, u64 *out) {
	BEGIN(nvmlDeviceGetTotalEccErrors, DEVICE, device);
	END(errors(&c, kind, counter, out));
}

// All errors are in device memory (location 2); other locations count none.
EXPORT enum code nvmlDeviceGetMemoryErrorCounter(handle device, u32 kind, u32 counter, u32 location, u64 *out) {
	BEGIN(nvmlDeviceGetMemoryErrorCounter, DEVICE, device);
	enum code code = errors(&c, kind, counter, out);
	if (code == OK && location != 2) *out = 0;
	END(code);
}

EXPORT enum code nvmlDeviceGetSramEccErrorStatus(handle device, struct a_sram *out) {
	BEGIN(nvmlDeviceGetSramEccErrorStatus, DEVICE, device);
	NEED(out);
	if (out->version != STRUCT_VERSION(struct a_sram, 1)) END(ARGUMENT_VERSION_MISMATCH);
	if (!c.m->ecc || !c.m->remap) END(NOT_SUPPORTED);
	*out = (struct a_sram){.version = out->version};
	END(OK);
}

// The bits are nvml.h's nvmlClocksThrottleReason…: 0x40 heat, 0x80 power brake.
EXPORT enum code nvmlDeviceGetCurrentClocksThrottleReasons(handle device, u64 *out) {
	BEGIN(nvmlDeviceGetCurrentClocksThrottleReasons, DEVICE, device);
	NEED(out);
	*out = c.g->set.clock_reasons;
	END(OK);
}

// Modes: 0 bare metal, 2 a guest's.
EXPORT enum code nvmlDeviceGetVirtualizationMode(handle device, u32 *out) {
	BEGIN(nvmlDeviceGetVirtualizationMode, DEVICE, device);
	NEED(out);
	*out = c.g->set.licence ? 2 : 0;
	END(OK);
}

// Of an expired licence the day stays: status 2 of nvml.h's nvmlGridLicenseExpiry_t.
EXPORT enum code nvmlDeviceGetGridLicensableFeatures_v4(handle device, struct a_features *out) {
	BEGIN(nvmlDeviceGetGridLicensableFeatures_v4, DEVICE, device);
	NEED(out);
	u32 is = c.g->set.licence;
	*out = (struct a_features){.supported = is != 0, .count = is != 0};
	out->of[0] = (struct a_feature){.code = 4, .state = is == 2, .enabled = 1, .product = "NVIDIA Virtual Compute Server"};
	if (is > 1) out->of[0].expiry = (struct a_expiry){.year = 2026, .month = 11, .day = 24, .status = 2};
	END(OK);
}

EXPORT enum code nvmlDeviceGetRemappedRows(handle device, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
	BEGIN(nvmlDeviceGetRemappedRows, DEVICE, device);
	NEED(corrected && uncorrected && pending && failed);
	if (!c.m->remap) END(NOT_SUPPORTED);
	*corrected = c.g->set.remap_corrected;
	*uncorrected = c.g->set.remap_uncorrected;
	*pending = c.g->set.remap_pending;
	*failed = c.g->set.remap_failed;
	END(OK);
}

EXPORT enum code nvmlDeviceGetRemappedRows_v2(handle device, struct a_remap2 *out) {
	BEGIN(nvmlDeviceGetRemappedRows_v2, DEVICE, device);
	NEED(out);
	if (!c.m->remap) END(NOT_SUPPORTED);
	*out = (struct a_remap2){.corrected = c.g->set.remap_corrected, .uncorrected = c.g->set.remap_uncorrected,
		.pending = c.g->set.remap_pending, .failed = c.g->set.remap_failed};
	END(OK);
}

// The histogram has one bank per row remapped, and a bank that could take no more if a remapping failed.
EXPORT enum code nvmlDeviceGetRowRemapperHistogram(handle device, struct a_histogram *out) {
	BEGIN(nvmlDeviceGetRowRemapperHistogram, DEVICE, device);
	NEED(out);
	if (!c.m->remap) END(NOT_SUPPORTED);
	const u32 banks = 640;
	u32 used = c.g->set.remap_corrected + c.g->set.remap_uncorrected;
	if (used > banks) used = banks;
	*out = (struct a_histogram){.max = banks - used, .high = used};
	if (c.g->set.remap_failed && out->max) {
		out->max--;
		out->none = 1;
	}
	END(OK);
}

EXPORT enum code nvmlDeviceGetRetiredPagesPendingStatus(handle device, u32 *out) {
	BEGIN(nvmlDeviceGetRetiredPagesPendingStatus, DEVICE, device);
	NEED(out);
	if (c.m->remap || !c.m->ecc) END(NOT_SUPPORTED); // Ampere and later remap rows instead
	*out = c.g->set.retired_pending;
	END(OK);
}

static enum code link(const struct call *c, u32 number) {
	if (number >= 18 && number >= c->m->links) return INVALID_ARGUMENT;
	return number < c->m->links ? OK : NOT_SUPPORTED;
}

EXPORT enum code nvmlDeviceGetNvLinkState(handle device, u32 number, u32 *active) {
	BEGIN(nvmlDeviceGetNvLinkState, DEVICE, device);
	NEED(active);
	enum code code = link(&c, number);
	if (code == OK) *active = !(c.g->set.links_down >> number & 1);
	END(code);
}

EXPORT enum code nvmlDeviceGetNvLinkVersion(handle device, u32 number, u32 *version) {
	BEGIN(nvmlDeviceGetNvLinkVersion, DEVICE, device);
	NEED(version);
	enum code code = link(&c, number);
	if (code == OK) *version = c.m->link_version;
	END(code);
}

EXPORT enum code nvmlDeviceGetNvLinkErrorCounter(handle device, u32 number, u32 counter, u64 *out) {
	BEGIN(nvmlDeviceGetNvLinkErrorCounter, DEVICE, device);
	NEED(out && counter < 5);
	enum code code = link(&c, number);
	if (code == OK) *out = number == 0 ? c.g->set.link_errors : 0;
	END(code);
}

static struct a_fabric fabric(const struct call *c) {
	struct a_fabric out = {.status = c->g->set.fabric_status, .state = c->g->set.fabric_state};
	if (out.state == 3) { // NVML_GPU_FABRIC_STATE_COMPLETED
		memcpy(out.cluster, c->s->cluster, sizeof out.cluster);
		out.clique = c->g->set.clique;
	}
	return out;
}

EXPORT enum code nvmlDeviceGetGpuFabricInfo(handle device, struct a_fabric *out) {
	BEGIN(nvmlDeviceGetGpuFabricInfo, DEVICE, device);
	NEED(out);
	if (!c.m->fabric) END(NOT_SUPPORTED);
	*out = fabric(&c);
	END(OK);
}

EXPORT enum code nvmlDeviceGetGpuFabricInfoV(handle device, void *out) {
	BEGIN(nvmlDeviceGetGpuFabricInfoV, DEVICE, device);
	NEED(out);
	u32 version = *(u32 *)out;
	size_t size = version == STRUCT_VERSION(struct a_fabric2, 2) ? sizeof(struct a_fabric2) : sizeof(struct a_fabric3);
	if (size == sizeof(struct a_fabric3) && version != STRUCT_VERSION(struct a_fabric3, 3)) END(ARGUMENT_VERSION_MISMATCH);
	if (!c.m->fabric) END(NOT_SUPPORTED);
	struct a_fabric f = fabric(&c);
	struct a_fabric3 v = {.version = version, .status = f.status, .clique = f.clique, .state = f.state};
	memcpy(v.cluster, f.cluster, sizeof v.cluster);
	memcpy(out, &v, size);
	END(OK);
}

EXPORT enum code nvmlDeviceGetRepairStatus(handle device, struct a_repair *out) {
	BEGIN(nvmlDeviceGetRepairStatus, DEVICE, device);
	NEED(out);
	if (out->version != STRUCT_VERSION(struct a_repair, 1)) END(ARGUMENT_VERSION_MISMATCH);
	if (c.m->arch < 10) END(NOT_SUPPORTED);
	out->channel = c.g->set.repair_channel;
	out->tpc = c.g->set.repair_tpc;
	END(OK);
}

// field answers the few fields that are asked for; NVML answers each with a code of its own.
static enum code field(const struct call *c, u32 id, u64 *out) {
	const struct settings *set = &c->g->set;
	switch (id) {
	case 1: *out = set->ecc; return c->m->ecc ? OK : NOT_SUPPORTED;
	case 91: *out = c->m->links; return OK;
	case 142: *out = set->remap_corrected; break;
	case 143: *out = set->remap_uncorrected; break;
	case 144: *out = set->remap_pending; break;
	case 145: *out = set->remap_failed; break;
	case 230: *out = set->recovery; return OK; // NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: R565 and newer
	default: return NOT_SUPPORTED;
	}
	return c->m->remap ? OK : NOT_SUPPORTED;
}

EXPORT enum code nvmlDeviceGetFieldValues(handle device, int n, struct a_field *fields) {
	BEGIN(nvmlDeviceGetFieldValues, DEVICE, device);
	NEED(n > 0 && fields);
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	for (int i = 0; i < n; i++) {
		fields[i].at = now.tv_sec * 1000000 + now.tv_nsec / 1000;
		fields[i].latency = 0;
		fields[i].type = 1; // NVML_VALUE_TYPE_UNSIGNED_INT
		fields[i].value = 0;
		fields[i].code = field(&c, fields[i].id, &fields[i].value);
	}
	END(OK);
}

enum { XID_EVENT = 8 }; // nvmlEventTypeXidCriticalError
struct set { u64 next, wanted[MAX_GPUS]; };

EXPORT enum code nvmlEventSetCreate(handle *out) {
	BEGIN_PLAIN(nvmlEventSetCreate);
	NEED(out);
	struct set *set = calloc(1, sizeof *set);
	if (!set) END(UNKNOWN);
	set->next = c.s->events;
	*out = (handle){(u64)(size_t)set};
	END(OK);
}

EXPORT enum code nvmlDeviceGetSupportedEventTypes(handle device, u64 *out) {
	BEGIN(nvmlDeviceGetSupportedEventTypes, DEVICE, device);
	NEED(out);
	*out = XID_EVENT | 1 | 2 | 4 | 16; // ECC errors, performance state and clock too, which never come
	END(OK);
}

EXPORT enum code nvmlDeviceRegisterEvents(handle device, u64 types, handle events) {
	BEGIN(nvmlDeviceRegisterEvents, DEVICE, device);
	NEED(events.bits);
	if (c.ci) END(NOT_SUPPORTED);
	((struct set *)(size_t)events.bits)->wanted[c.number] |= types;
	END(OK);
}

static enum code next_event(struct call *c, struct set *set, struct a_event *out) {
	if (c->s->events - set->next > MAX_EVENTS && c->s->events > set->next) set->next = c->s->events - MAX_EVENTS;
	while (set->next < c->s->events) {
		const struct event *e = &c->s->event[set->next++ % MAX_EVENTS];
		if (!(set->wanted[e->gpu] & e->type)) continue;
		*out = (struct a_event){device_handle(e->gpu), e->type, e->data, e->gi, e->ci};
		return OK;
	}
	return TIMEOUT;
}

static enum code await(u32 name, handle events, struct a_event *out, u32 ms) {
	struct timespec now, nap = {0, 2000000};
	clock_gettime(CLOCK_MONOTONIC, &now);
	const long long until = now.tv_sec * 1000ll + now.tv_nsec / 1000000 + ms;
	for (;;) {
		struct call c;
		enum code code = begin_plain(&c, name);
		if (code != OK) return code;
		NEED(events.bits && out);
		code = end(&c, next_event(&c, (struct set *)(size_t)events.bits, out));
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (code != TIMEOUT || now.tv_sec * 1000ll + now.tv_nsec / 1000000 >= until) return code;
		nanosleep(&nap, NULL);
	}
}

EXPORT enum code nvmlEventSetWait(handle events, struct a_event *out, u32 ms) { return await(CALL_nvmlEventSetWait, events, out, ms); }
EXPORT enum code nvmlEventSetWait_v2(handle events, struct a_event *out, u32 ms) { return await(CALL_nvmlEventSetWait_v2, events, out, ms); }

EXPORT enum code nvmlEventSetFree(handle events) {
	BEGIN_PLAIN(nvmlEventSetFree);
	NEED(events.bits);
	free((struct set *)(size_t)events.bits);
	END(OK);
}
