// SPDX-License-Identifier: Apache-2.0

// The whole state as JSON.
#include <stdio.h>

#include "tool.h"

static void put_id(const char *name, u32 id) {
	if (id == NOWHERE)
		printf(",\"%s\":-1", name);
	else
		printf(",\"%s\":%u", name, id);
}

static void dump_instances(struct gpu *g) {
	const struct model *m = model_of(g);
	const char *comma = "";
	printf(",\"instances\":[");
	for (u32 id = 0; id < 64; id++) {
		struct gi *gi = gi_at(g, id);
		if (!gi) continue;
		const struct gi_model *profile = &m->gi[gi->profile];
		printf("%s{\"id\":%u,\"profile\":%u,\"name\":\"%s\"", comma, id, profile->id, profile->name);
		printf(",\"start\":%u,\"size\":%u,\"compute\":[", gi->start, gi->size);

		comma = "";
		for (int i = 0; i < MAX_CIS; i++) {
			struct ci *ci = &gi->ci[i];
			char uuid[48];
			if (!ci->used) continue;
			mig_uuid(g, id, ci->id, uuid);
			printf("%s{\"id\":%u,\"profile\":%u", comma, ci->id, m->ci[ci->profile].id);
			printf(",\"start\":%u,\"size\":%u,\"uuid\":\"%s\"}", ci->start, ci->size, uuid);
			comma = ",";
		}
		printf("]}");
		comma = ",";
	}
	printf("]");
}

static void dump_gpu(struct gpu *g, u32 i) {
	const struct model *m = model_of(g);
	const char *name;
	printf("%s{\"model\":\"%s\",\"index\":%u", i ? "," : "", m->key, i);
	printf(",\"address\":\"0000:%02x:00.0\",\"uuid\":\"%s\",\"serial\":\"%s\"", g->bus, g->uuid, g->serial);
	printf(",\"mig\":%s,\"mode\":%u,\"pending\":%u", m->gis ? "true" : "false", g->mode, g->pending);

	printf(",\"settings\":{");
	u64 value = setting(&g->set, 0, &name);
	for (u32 n = 0; name; value = setting(&g->set, ++n, &name)) {
		printf("%s\"%s\":%llu", n ? "," : "", name, value);
	}
	printf("}");

	dump_instances(g);
	printf("}");
}

static void dump_log(const struct state *s) {
	u64 first = s->logged > MAX_LOG ? s->logged - MAX_LOG : 0;
	printf(",\"log\":[");
	for (u64 n = first; n < s->logged; n++) {
		const struct mutation *l = &s->log[n % MAX_LOG];
		printf("%s{\"pid\":%u,\"call\":\"%s\"", n > first ? "," : "", l->pid, call_name(l->call));
		put_id("gpu", l->gpu);
		put_id("gi", l->gi);
		put_id("ci", l->ci);
		put_id("profile", l->profile);
		printf(",\"start\":%u,\"size\":%u,\"code\":\"%s\"}", l->start, l->size, code_name(l->code));
	}
	printf("]");
}

void dump(struct state *s) {
	const char *comma = "";
	printf("{\"driver\":\"%s\",\"nvml\":\"%s\",\"cuda\":%u", s->driver, s->nvml, s->cuda);
	printf(",\"init\":\"%s\",\"boots\":%u,\"latency_ms\":%u", code_name(s->init_code), s->boots, s->latency_ms);
	printf(",\"mutations\":%llu,\"attaches\":%u", s->mutations, s->attaches);

	printf(",\"gpus\":[");
	for (u32 i = 0; i < s->gpus; i++) dump_gpu(&s->gpu[i], i);

	printf("],\"clients\":[");
	for (int i = 0; i < MAX_CLIENTS; i++) {
		const struct client *c = &s->client[i];
		if (!c->pid) continue;
		printf("%s{\"pid\":%u", comma, c->pid);
		put_id("gpu", c->gpu);
		put_id("gi", c->gi);
		put_id("ci", c->ci);
		printf("}");
		comma = ",";
	}

	printf("],\"rules\":[");
	comma = "";
	for (int i = 0; i < MAX_RULES; i++) {
		const struct rule *r = &s->rule[i];
		if (r->kind == RULE_FREE) continue;
		printf("%s{\"call\":\"%s\",\"nth\":%u,\"seen\":%u}", comma, call_name(r->call), r->nth, r->seen);
		comma = ",";
	}

	printf("],\"counts\":{");
	comma = "";
	for (u32 i = 0; i < CALLS; i++) {
		if (!s->counts[i]) continue;
		printf("%s\"%s\":%llu", comma, call_name(i), s->counts[i]);
		comma = ",";
	}
	printf("}");

	dump_log(s);
	printf("}\n");
}
