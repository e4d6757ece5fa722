// SPDX-License-Identifier: Apache-2.0

#ifndef FAKE_TOOL_H
#define FAKE_TOOL_H

#include "state.h"

void dump(struct state *s);
struct state *make_state(const char *gpus, const char *driver, const char *cuda); // exits where a model is unknown
_Noreturn void stop(const char *format, ...);
void set_driver(struct state *s, const char *driver, const char *cuda);

#endif
