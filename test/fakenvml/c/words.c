// SPDX-License-Identifier: Apache-2.0

// Names of codes, calls and settings.
#include <stddef.h>
#include <string.h>

#include "state.h"

static const struct { u32 code; const char *name, *words; } CODES[] = {
	{0, "SUCCESS", "Success"},
	{1, "UNINITIALIZED", "Uninitialized"},
	{2, "INVALID_ARGUMENT", "Invalid Argument"},
	{3, "NOT_SUPPORTED", "Not Supported"},
	{4, "NO_PERMISSION", "Insufficient Permissions"},
	{6, "NOT_FOUND", "Not Found"},
	{7, "INSUFFICIENT_SIZE", "Insufficient Size"},
	{8, "INSUFFICIENT_POWER", "Insufficient External Power"},
	{9, "DRIVER_NOT_LOADED", "Driver Not Loaded"},
	{10, "TIMEOUT", "Timeout"},
	{11, "IRQ_ISSUE", "Interrupt Request Issue"},
	{12, "LIBRARY_NOT_FOUND", "NVML Shared Library Not Found"},
	{13, "FUNCTION_NOT_FOUND", "Function Not Found"},
	{14, "CORRUPTED_INFOROM", "Corrupted infoROM"},
	{15, "GPU_IS_LOST", "GPU is lost"},
	{16, "RESET_REQUIRED", "GPU requires reset"},
	{17, "OPERATING_SYSTEM", "GPU access blocked by the operating system"},
	{18, "LIB_RM_VERSION_MISMATCH", "Driver/library version mismatch"},
	{19, "IN_USE", "In use by another client"},
	{20, "MEMORY", "Insufficient Memory"},
	{21, "NO_DATA", "No data"},
	{23, "INSUFFICIENT_RESOURCES", "Insufficient Resources"},
	{25, "ARGUMENT_VERSION_MISMATCH", "Version mismatch between input and output arguments"},
	{26, "DEPRECATED", "Deprecated"},
	{27, "NOT_READY", "Not Ready"},
	{28, "GPU_NOT_FOUND", "No GPUs were found"},
	{29, "INVALID_STATE", "Invalid State"},
	{30, "RESET_TYPE_NOT_SUPPORTED", "Reset type not supported"},
	{999, "UNKNOWN", "Unknown Error"},
};
enum { CODE_COUNT = sizeof CODES / sizeof *CODES };

const char *code_name(u32 code) {
	for (int i = 0; i < CODE_COUNT; i++)
		if (CODES[i].code == code) return CODES[i].name;
	return "UNKNOWN";
}

const char *code_words(u32 code) {
	for (int i = 0; i < CODE_COUNT; i++)
		if (CODES[i].code == code) return CODES[i].words;
	return "Unknown Error";
}

int code_by_name(const char *name) {
	if (strncmp(name, "NVML_ERROR_", 11) == 0) name += 11;
	for (int i = 0; i < CODE_COUNT; i++)
		if (strcmp(CODES[i].name, name) == 0) return (int)CODES[i].code;
	return -1;
}

#define NAME_CALL(name) #name,
static const char *const CALL_NAMES[] = {EACH_CALL(NAME_CALL)};

const char *call_name(u32 call) {
	if (call < CALLS) return CALL_NAMES[call];
	return call == SMI_RESET ? "nvidia-smi --gpu-reset" : "any change";
}

int call_by_name(const char *name) {
	for (int i = 0; i < CALLS; i++)
		if (strcmp(CALL_NAMES[i], name) == 0) return i;
	return -1;
}

#define SETTING(name) {#name, offsetof(struct settings, name), sizeof(((struct settings *)0)->name)}
static const struct { const char *name; size_t at, size; } SETTINGS[] = {
	SETTING(lost), SETTING(lost_late),
	SETTING(reset_refused), SETTING(reset_void), SETTING(self_reset),
	SETTING(persistence), SETTING(compute_mode),

	SETTING(ecc), SETTING(ecc_pending),
	SETTING(ecc_corrected), SETTING(ecc_uncorrected),
	SETTING(ecc_corrected_ever), SETTING(ecc_uncorrected_ever),

	SETTING(remap_corrected), SETTING(remap_uncorrected),
	SETTING(remap_pending), SETTING(remap_failed), SETTING(retired_pending),

	SETTING(fabric_state), SETTING(fabric_status), SETTING(clique),
	SETTING(links_down), SETTING(link_errors),

	SETTING(repair_channel), SETTING(repair_tpc),
	SETTING(xid_count), SETTING(clock_reasons), SETTING(licence), SETTING(recovery),
};
enum { SETTING_COUNT = sizeof SETTINGS / sizeof *SETTINGS };

u64 setting(const struct settings *set, u32 n, const char **name) {
	*name = NULL;
	if (n >= SETTING_COUNT) return 0;
	*name = SETTINGS[n].name;
	const char *at = (const char *)set + SETTINGS[n].at;
	return SETTINGS[n].size == sizeof(u64) ? *(const u64 *)at : *(const u32 *)at;
}

int setting_put(struct settings *set, const char *name, u64 value) {
	for (int i = 0; i < SETTING_COUNT; i++) {
		if (strcmp(SETTINGS[i].name, name) != 0) continue;
		char *at = (char *)set + SETTINGS[i].at;
		if (SETTINGS[i].size == sizeof(u64))
			*(u64 *)at = value;
		else
			*(u32 *)at = (u32)value;
		return 0;
	}
	return -1;
}
