// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

func systemChecks() []Check { return nil }

func systemEdges() []Edge { return nil }
