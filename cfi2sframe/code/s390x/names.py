# SPDX-License-Identifier: Apache-2.0
"""The mnemonics of s390x by what their instructions change (z/Architecture Principles of Operation).

Loads, copies and sums that a frame depends on are not here: `s390x` has a function for each of these.
"""

from __future__ import annotations

from typing import Final

from cfi2sframe.code.effects import Condition

#: Conditions as mnemonics spell them, after a comparison; o and no tell of overflow, which comparisons do not have.
CONDITIONS: Final = {
    **dict.fromkeys(("e", "z", "nlh"), Condition.EQUAL),
    **dict.fromkeys(("ne", "nz", "lh"), Condition.NOT_EQUAL),
    **dict.fromkeys(("h", "p", "nle"), Condition.ABOVE),
    **dict.fromkeys(("he", "nl", "nm"), Condition.ABOVE_OR_EQUAL),
    **dict.fromkeys(("l", "m", "nhe"), Condition.BELOW),
    **dict.fromkeys(("le", "nh", "np"), Condition.BELOW_OR_EQUAL),
    **dict.fromkeys(("o", "no"), Condition.NONE),
}
#: The stems of compare-and-branch instructions: the bytes that are compared, and whether as signed numbers.
COMPARES: Final = {
    "cr": (4, True),
    "cgr": (8, True),
    "clr": (4, False),
    "clgr": (8, False),
    "ci": (4, True),
    "cgi": (8, True),
    "cli": (4, False),
    "clgi": (8, False),
}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def with_conditions(*stems: str) -> tuple[str, ...]:
    """Return the mnemonics that begin with these and end in a condition, or have it as a number in an operand."""
    return tuple([stem + suffix for stem in stems for suffix in ("", *CONDITIONS)])


#: Nothing, or storage that is not addressed through a register.
READS_ONLY: Final = (
    *_words("pfd pfdrl ppa bpp bprp stgrl strl sthrl sfpc srnm srnmb srnmt lfpc lfas sar cpya lam lamy niai etnd"),
    *with_conditions("crt", "cgrt", "clrt", "clgrt", "cit", "cgit", "clfit", "clgit", "clt", "clgt"),
)
#: The condition code.
FLAGS_ONLY: Final = _words(
    "c cy cg cgf cgh ch chy chf chsi cghsi chhsi cih chhr chlr cl cly clg clgf clhf clih clhhr clhlr clfhsi clghsi"
    " clhhsi cli cliy clc clm clmy clmh crl cgrl cgfrl chrl cghrl clrl clgrl clgfrl clhrl clghrl cgfr clgfr"
    " tm tmy tmll tmlh tmhl tmhh tml tmh spm tend cp tp tprot"
    " cer cdr cxr ce cd cebr cdbr cxbr ceb cdb kebr kdbr kxbr keb kdb tceb tcdb tcxb cdtr cxtr kdtr kxtr cedtr cextr"
    " tdcet tdcdt tdcxt tdget tdgdt tdgxt"
    " wfc wfcdb wfcsb wfcxb wfk wfkdb wfksb wfkxb vec vecb vech vecf vecg vecl veclb veclh veclf veclg vtm vtp vcp"
)
#: The first operand.
FIRST_ONLY: Final = (
    *_words(
        "l ly lr lrl llc llcr llh llhr lh lhy lhr lhi lhrl lb lbr"
        " lgb lgbr lghr lghrl llhrl ic icy lat llgfat llgtat llgt llgtr lfh lfhat"
        " lbh lhh llch llhh lzrf llzrgf"
        " ms msr msy msfi msg msgr msgf msgfr msgfi mh mhy mhi mghi mgh sll srl sllk srlk srlg rll rllg"
        " iihh iihl iilh iill iihf iilf lrv lrvg lrvr lrvgr lrvh ipm ear efpc risbhg risblg"
        " cvb cvby cvbg le ley lde ler lzer lzdr vl vlr vzero vone vgbm vlgvb vlgvh vlgvf vlgvg"
    ),
    *with_conditions("loc", "locg", "locr", "locgr", "lochi", "locghi", "locfh", "locfhr", "lochhi"),
    *with_conditions("selr", "selgr", "selfhr"),
)
#: The first operand, and the condition code.
FIRST_AND_FLAGS: Final = _words(
    "a ar ay ah ahy ahi ahik afi aih ark al alr aly alc alcr alcg alcgr alfi alrk alhsik algf algfr agfr agh alg"
    " alsih alsihn ahhhr ahhlr alhhhr alhhlr s sr sy sh shy srk sl slr sly slb slbr slbg slbgr slfi slrk sg sgr sgf"
    " sgfr sgh sgrk slg slgr slgf slgfr slgrk shhhr shhlr slhhhr slhhlr"
    " n nr ny nrk ng ngr ngrk nihh nihl nilh nill nihf nilf o or oy ork og ogr ogrk oihh oihl oilh oill oihf oilf"
    " x xr xy xrk xg xgr xgrk xihf xilf ncrk ncgrk nnrk nngrk nork nogrk nxrk nxgrk ocrk ocgrk"
    " ltr lcr lcgr lcgfr lpr lpgr lpgfr lnr lngr lngfr lt ltgf icm icmh icmy sla slak slag sra srak srag"
    " rosbg rnsbg rxsbg popcnt msrkc msgrkc msc msgc lcbb"
    " cfebr cfdbr cgebr cgdbr clfebr clfdbr clgebr clgdbr cfebra cfdbra cgebra cgdbra cfer cfdr cger cgdr"
)
#: A pair of registers, which begins with the first operand; of some, also the condition code.
PAIR: Final = _words(
    "m mr ml mlr mlg mlgr mg mgrk mfy d dr dl dlr dlg dlgr dsg dsgr dsgf dsgfr srda srdl slda sldl flogr lpq lpd lpdg"
)
#: The registers that are operands, and the condition code.
NAMED: Final = _words("clst srst srstu mvst")
#: The pairs that begin with the registers that are operands, and the condition code.
NAMED_PAIRS: Final = _words(
    "mvcl clcl mvcle clcle mvclu clclu cuse cksm tre km kmc kma kmctr kmf kmo kimd klmd kmac ppno prno"
    " cu12 cu14 cu21 cu24 cu41 cu42 cuutf cutfu trte trtre troo trot trto trtt"
)
#: Storage that is not known, with the bytes that are stored and the number of the operand.
STORE_SIZES: Final = {
    **dict.fromkeys(_words("stc stcy stch vsteb"), (1, 1)),
    **dict.fromkeys(_words("sth sthy sthh strvh vsteh vstebrh"), (2, 1)),
    **dict.fromkeys(_words("st sty stfh strv ste stey vstef vstebrf"), (4, 1)),
    **dict.fromkeys(_words("strvg vsteg vstebrg cvd cvdy ntstg"), (8, 1)),
    **dict.fromkeys(
        _words("vst stpq cvdg vstrl vstbr vstbrh vstbrf vstbrg vstbrq vster vsterh vsterf vsterg"), (16, 1)
    ),
    "vupkz": (32, 1),
    **dict.fromkeys(with_conditions("stoc", "stocfh"), (4, 1)),
    **dict.fromkeys(with_conditions("stocg"), (8, 1)),
    **dict.fromkeys(("stcm", "stcmy", "stcmh"), (4, 2)),
    **dict.fromkeys(("vstl", "vstrlr"), (16, 2)),
    **dict.fromkeys(("mvi", "mviy"), (1, 0)),
    "mvhhi": (2, 0),
    **dict.fromkeys(("mvhi", "stfpc"), (4, 0)),
    "mvghi": (8, 0),
    **dict.fromkeys(("pka", "pku"), (16, 0)),
}
#: The first operand, in storage, and the condition code, with the bytes that are stored.
UPDATE_SIZES: Final = {
    **dict.fromkeys(("ni", "niy", "oi", "oiy", "xi", "xiy", "ts"), 1),
    **dict.fromkeys(("asi", "alsi"), 4),
    **dict.fromkeys(("agsi", "algsi", "stck", "stckf"), 8),
    "stcke": 16,
}
#: The first operand, in storage, whose length is in the text.
MOVES: Final = _words("mvc mvn mvz mvcin mvo pack unpk tr")
#: The same, and the condition code.
MOVES_AND_FLAGS: Final = _words("nc oc xc zap ap sp srp ed unpka unpku mp dp")
#: The sizes of what instructions change in storage, their third operand, besides their first one, a register.
SWAP_SIZES: Final = {
    **dict.fromkeys(("cs", "csy", "laa", "laal", "lan", "lao", "lax"), 4),
    **dict.fromkeys(("csg", "laag", "laalg", "lang", "laog", "laxg"), 8),
}
#: The same for a pair of registers.
PAIR_SWAP_SIZES: Final = {"cds": 8, "cdsy": 8, "cdsg": 16}
#: What leaves for another mode, space or program, loads control registers, or executes an instruction at an address
#: in a register.
UNKNOWN: Final = _words(
    "ex ereg eregg sam24 sam31 bassm bsm bsa bsg bakr pc pr pt pti trap2 trap4 lpsw lpswe lpswey rp sie sac sacf sigp"
    " diag ssch rsch tabort lctl lctlg lcctl lpctl lsctl lasp"
)
#: What `exrl` may execute with another second byte: it is a length or a number, and names no register.
EXECUTED: Final = frozenset({*MOVES, *MOVES_AND_FLAGS, *_words("clc tm cli mvi ni oi xi trt trtr edmk cp")})
