// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

func driverChecks() []Check { return nil }

func driverEdges() []Edge { return nil }
