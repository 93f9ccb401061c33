# SPDX-License-Identifier: Apache-2.0
# $(call sframe,FILE): put the section into what has just been linked. Use it as the last line of the rule that links,
# together with .DELETE_ON_ERROR, so that a file that could not be converted does not pass for a finished one.
CFI2SFRAME      ?= cfi2sframe
CFI2SFRAMEFLAGS ?=

sframe = $(CFI2SFRAME) --in-place --replace $(CFI2SFRAMEFLAGS) $(1)
