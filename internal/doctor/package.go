// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

func packageChecks() []Check { return nil }

func packageEdges() []Edge { return nil }
