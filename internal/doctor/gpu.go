// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

func gpuChecks() []Check { return nil }

func gpuEdges() []Edge { return nil }
